"""Bad input: one sentence on standard error, exit code 2, and nothing left behind."""

import os
import random
from pathlib import Path

import pytest

from rnnewton.cli import main

TEXT = "the quick brown fox jumps over the lazy dog. " * 80
SMALL = ["--hidden", "6", "--steps", "1", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "other.txt").write_text(TEXT[::-1])
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one.txt").write_text("a" * 500)
    (tmp_path / "noise.bin").write_bytes(random.Random(0).randbytes(3000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "misspelt.toml").write_text("hiden = [8]\n")
    (tmp_path / "broken.toml").write_text("hidden = [8\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    return tmp_path


FAULTS = [
    (["missing.txt"], "missing.txt"),
    (["empty.txt"], "empty"),
    (["folder"], "directory"),
    (["one.txt"], "one symbol"),
    (["noise.bin", "--read", "utf8"], "not UTF-8"),
    (["text.txt", "--split", "2800000/200000/200000"], "--split"),
    (["text.txt", "--hidden", "0"], "--hidden 0"),
    (["text.txt", "--hidden", "8", "--steps", "-1"], "--steps -1"),
    (["text.txt", "--damping", "structural"[:9]], "--damping"),
    (["text.txt", "--device", "cuda:99"], "--device cuda:99"),
    (["text.txt", "--config", "misspelt.toml"], "'hidden'"),
    (["text.txt", "--config", "broken.toml"], "not TOML"),
    (["text.txt", "--config", "none.toml"], "none.toml"),
    (["text.txt", "--preset", "thesis/mlstn"], "'thesis/mlstm'"),
    (["--preset", "thesis/mlstm"], "licensed"),
    (["text.txt", "--hiden", "8"], "the nearest one is --hidden"),
    (["text.txt", "--optimizer", "lstm-online", "--cell", "mlstm"], "lstm-online"),
    (["text.txt", "--tap", "cell", "--cell", "rnn"], "--tap cell"),
    (["text.txt", "--forget-bias", "1"], "--bias"),
    (["text.txt", "--optimizer", "adam", "--schedule", "cosine", "--seconds", "1"], "--steps"),
    (["text.txt", "--run", "full"], "letter.txt"),
    (["text.txt", "--run", "text.txt"], "is a file"),
]


@pytest.mark.parametrize(
    ("words", "part"), FAULTS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_one_sentence_and_nothing_left(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["train", *words]) == 2
    out, err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert out == "" and last.startswith("rnnewton: ") and part in last and "Traceback" not in err
    assert sorted(folder.rglob("*")) == before


CHANGES = [
    (["other.txt"], "text"),
    (["text.txt", "--hidden", "7"], "--hidden 7"),
    (["text.txt", "--cell", "lstm"], "--cell lstm"),
    (["text.txt", "--seed", "5"], "--seed 5"),
    (["text.txt", "--optimizer", "adam"], "--optimizer adam"),
    (["text.txt", "--damping", "tikhonov:1"], "--damping tikhonov:1"),
    (["text.txt", "--preset", "thesis/mlstm"], "--preset thesis/mlstm"),
    (["text.txt", "--alphabet", "9"], "--alphabet 9"),
]


def test_another_run_on_the_same_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "text.txt", "--run", "run", *SMALL]) == 0
    before = {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    }
    for words, part in CHANGES:
        for steps in ("1", "2"):  # of a finished run, and of one that would go on
            capsys.readouterr()
            assert main(["train", *words, "--run", "run", "--steps", steps]) == 2
            assert part in capsys.readouterr().err.strip().splitlines()[-1]
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_a_folder_that_cannot_be_written_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        (folder / "blocked").write_text("a file where a folder would have to be")
        place = "blocked/run"
    else:
        (folder / "blocked").mkdir(mode=0o500)
        place = "blocked/run"
    assert main(["train", "text.txt", "--run", place, *SMALL]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "nowhere"],
        ["presets", "thesis/none"],
        ["sample", "nowhere"],
        ["evaluate", "nowhere", "text.txt"],
        ["fly"],
    ],
)
def test_other_commands_refuse_too(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1
