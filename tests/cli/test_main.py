"""The front door: help at once and without torch, versions, and the same program under both names."""

import resource
import subprocess
import sys

import pytest

from rnnewton import __version__
from rnnewton.cli import COMMANDS, main


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_help_is_there_at_once_and_loads_no_torch() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = run("-m", "rnnewton", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found.returncode == 0 and "examples:" in found.stdout
    # Seconds of the processor, not of the clock: the machine may be busy with other tests.
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.5
    probe = (
        "import sys\nfrom rnnewton.cli import main\ntry: main(['{}', '--help'])\nexcept SystemExit: pass\n"
    )
    probe += "print('torch' in sys.modules)"
    for command in ("train", "presets", "compare", "demo"):
        assert run("-c", probe.format(command)).stdout.splitlines()[-1] == "False"


def test_both_names_are_the_same_program() -> None:
    assert run("-m", "rnnewton", "--version").stdout == f"rnnewton {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown and len(shown) > 200


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_an_unknown_command_is_the_users_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("rnnewton: ")
