"""`rnnewton train` as a person uses it: it begins, goes on, stays finished, and shows JSON when asked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rnnewton
from rnnewton.cli import main

TEXT = "the quick brown fox jumps over the lazy dog. " * 80
SMALL = ["--hidden", "6", "--threads", "1"]
KEYS = {
    "step",
    "seconds",
    "work",
    "characters",
    "loss_before",
    "loss_after",
    "validation_bits",
    "mu",
    "lambda",
    "p",
    "cg_iterations",
    "cg_reason",
    "step_size",
    "accepted",
    "products",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def train(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["train", "text.txt", "--run", "run", "--json", *SMALL, *words]) == 0
    return json.loads(capsys.readouterr().out)


def lines(folder: Path, run: str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_has_all_that_is_promised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(capsys, "--steps", "3")
    run = folder / "run"
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert names == {
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "curves.png",
        "done.json",
    }
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    records = lines(folder)
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert set(record) >= KEYS
    assert result["step"] == 3 and result["reason"] == "steps"
    assert result["validation_bits"] == min(record["validation_bits"] for record in records)
    assert result == json.loads((run / "done.json").read_text())
    best = rnnewton.load(run)
    assert sum(p.numel() for p in best.parameters()) == result["parameters"]
    assert best.alphabet.decode(best.alphabet.encode("the fox")) == "the fox"
    assert rnnewton.load(run, which="newest").architecture == best.architecture


def test_the_same_command_changes_nothing_and_a_larger_limit_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(capsys, "--steps", "2")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert train(capsys, "--steps", "2") == first
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert main(["train", "--run", "run"]) == 0  # the folder knows its text and its limit
    assert "nothing was changed" in capsys.readouterr().out
    assert train(capsys, "--steps", "4")["step"] == 4
    assert [record["step"] for record in lines(folder)] == [1, 2, 3, 4]
    assert train(capsys, "--steps", "3")["step"] == 4


@pytest.mark.parametrize(
    "words",
    [[], ["--optimizer", "adam", "--report-every", "3"], ["--dropout", "0.3", "--weight-noise", "0.02"],
     ["--optimizer", "lstm-online", "--cell", "lstm", "--report-every", "300"],
     ["--optimizer", "momentum", "--carry", "--length", "20", "--report-every", "3"]],
    ids=["hf", "adam", "regularised", "lstm-online", "carried"],
)  # fmt: skip
def test_a_run_in_two_parts_is_the_run_in_one(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    for run, parts in (("whole", ["4"]), ("parts", ["1", "3", "4"])):
        for steps in parts:
            assert (
                main(
                    [
                        "train",
                        "text.txt",
                        "--run",
                        run,
                        "--steps",
                        steps,
                        "--validate-every",
                        "1",
                        *SMALL,
                        *words,
                    ]
                )
                == 0
            )
    newest = [folder / run / "checkpoints" / "step-000004" for run in ("whole", "parts")]
    for name in ("weights.safetensors", "state.safetensors"):
        assert (newest[0] / name).read_bytes() == (newest[1] / name).read_bytes()
    strip = [[{**record, "seconds": 0} for record in lines(folder, run)] for run in ("whole", "parts")]
    assert strip[0] == strip[1]


def test_flag_beats_file_beats_preset_beats_default(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.toml").write_text('hidden = [5]\n[sequences]\nlength = 30\ncurvature_batch = "1/2"\n')
    words = [
        "--preset",
        "thesis/rnn-structural",
        "--config",
        "mine.toml",
        "--length",
        "25",
        "--steps",
        "1",
        "--run",
        "run",
    ]
    assert main(["train", "text.txt", *words]) == 0
    config = (folder / "run" / "config.toml").read_text()
    assert "length = 25" in config  # the flag
    assert 'curvature_batch = "1/2"' in config and "5,\n" in config  # the file
    assert 'cell = "rnn"' in config and 'init = "sparse:0.1"' in config  # the preset
    assert 'read = "auto"' in config  # the default


def test_seconds_end_a_run_over_all_its_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(capsys, "--seconds", "0.05")
    assert result["reason"] == "seconds" and result["seconds"] >= 0.05
    again = train(capsys, "--seconds", "0.05")
    assert again == result
    assert train(capsys, "--seconds", str(result["seconds"] + 0.05))["step"] > result["step"]


def test_early_stopping_keeps_the_best(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optimizer", "sgd", "--learning-rate", "1e-9", "--average", "0", "--report-every", "1"]
    result = train(
        capsys, "--patience", "2", "--validate-every", "1", *words, "--steps", "50", "--precision", "fp64"
    )
    assert result["reason"] in ("patience", "steps")
    records = lines(folder)
    best = min(record["validation_bits"] for record in records)
    assert result["validation_bits"] == best
    if result["reason"] == "patience":
        assert result["best_step"] == records[-1]["step"] - 2


def test_a_damaged_newest_checkpoint_gives_way(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(capsys, "--steps", "3")
    weights = folder / "run" / "checkpoints" / "step-000003" / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    (folder / "run" / "done.json").unlink()
    assert main(["train", "--run", "run"]) == 0
    assert "step-000003 is damaged" in capsys.readouterr().err
    assert weights.read_bytes() == good  # the step was done again, to the bit
    assert [record["step"] for record in lines(folder)] == [1, 2, 3]


def test_without_a_run_folder_one_is_made_and_said_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "text.txt", "--steps", "1", *SMALL]) == 0
    made = [path.name for path in (folder / "runs").iterdir()]
    assert len(made) == 1 and made[0].startswith("text-")
    assert capsys.readouterr().err.splitlines()[0] == f"run folder: runs/{made[0]}"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rnnewton", "train", "text.txt", "--run", "run", *SMALL, *words]


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(folder: Path) -> None:
    process = subprocess.Popen(
        command("--steps", "100000", "--patience", "100000", "--checkpoint-every", "50"),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "run" / "metrics.jsonl").exists() or len(lines(folder)) < 3:
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: rnnewton train --run run" in err and "Traceback" not in err
    last = lines(folder)[-1]["step"]
    assert (folder / "run" / "checkpoints" / f"step-{last:06d}" / "checkpoint.json").exists()
    assert subprocess.run(command("--steps", str(last + 1)), check=False).returncode == 0
    assert [record["step"] for record in lines(folder)] == list(range(1, last + 2))


@pytest.mark.slow
def test_two_processes_on_one_folder(folder: Path) -> None:
    words = ("--steps", "100000", "--patience", "100000", "--length", "400")
    first = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL)
    while not (folder / "run" / "metrics.jsonl").exists():
        time.sleep(0.05)
        assert first.poll() is None
    second = subprocess.run(command("--steps", "5"), capture_output=True, text=True, check=False)
    assert second.returncode == 2 and f"in use by process {first.pid}" in second.stderr
    first.kill()
    first.wait()
    steps = len(lines(folder))
    assert subprocess.run(command("--steps", str(steps)), check=False, env=dict(os.environ)).returncode == 0
