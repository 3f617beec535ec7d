"""Building: once, in a cache folder, by several processes at once, and one clear line where it cannot be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rnnewton.recurrent.kernels import build as building
from rnnewton.recurrent.kernels import unavailable
from rnnewton.recurrent.kernels.build import BuildError, build, default_flags, load
from rnnewton.recurrent.kernels.interface import declare

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=f"no native kernels: {unavailable()}")
PLAIN = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(BuildError, match="no C\\+\\+ compiler was found") as error:
        build(tmp_path)
    assert "\n" not in str(error.value)


@needs_compiler
def test_a_failed_build_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="failed: ") as error:
        build(tmp_path, flags=("--no-such-flag",))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be built in"):
        build(tmp_path / "file" / "below")


@needs_compiler
def test_the_default_build_is_not_made_twice() -> None:
    said: list[str] = []
    assert build(say=said.append).exists()
    assert said == []


@needs_compiler
def test_flags_are_part_of_the_name() -> None:
    compiler = building.find_compiler()
    assert building._hash(compiler, default_flags()) != building._hash(compiler, PLAIN)


@needs_compiler
@pytest.mark.slow
def test_two_processes_build_at_once_and_narrow_vectors_are_right(tmp_path: Path) -> None:
    """Without -march=native the vectors are the narrowest that every processor of this kind has."""
    program = (
        "import sys, pathlib; from rnnewton.recurrent.kernels.build import build;"
        f"print(build(pathlib.Path(sys.argv[1]), flags={PLAIN!r}))"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [run.communicate()[0].strip() for run in runs]
    assert answers[0] == answers[1]
    assert [path.name for path in tmp_path.iterdir()] == [Path(answers[0]).name]
    library = declare(load(tmp_path, flags=PLAIN))
    assert library.rn_vector_bytes() == 16
    from recurrent.kernels.test_native import Option, block_of, eager, off, weights
    from rnnewton.recurrent.kernels import NativeChunk, Way

    for cell in ("mlstm", "mrnn", "lstm-original"):
        architecture = Option().architecture(cell, (20, 9))
        flat, block = weights(architecture), block_of(architecture, Option(), 7, 13, seed=1)
        truth = eager(architecture, flat, block).gradient()
        for precision, tolerance in (("fp32", 2e-5), ("bf16", 4e-2)):
            gradient = torch.zeros_like(flat)
            NativeChunk(library, architecture, flat, block, Way(precision)).gradient(gradient)
            assert off(gradient, truth) < tolerance
