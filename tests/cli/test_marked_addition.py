"""`rnnewton marked-addition`, from outside; and one run of each optimiser that learns something."""

import json
from pathlib import Path

import pytest

from rnnewton.cli import main
from rnnewton.lab.marked_addition import AdditionSettings, model_for, run_addition


def test_table_figure_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "addition.png"
    words = [
        "marked-addition",
        "--lengths",
        "4,5",
        "--optimizers",
        "hf,adam",
        "--hidden",
        "5",
        "--seeds",
        "2",
    ]
    words += ["--seconds", "0.2", "--sequences", "20", "--out", str(figure), "--rates", "0.01,0.001"]
    assert main(words) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split()[:4] == ["optimiser", "cell", "units", "length"]
    assert len(lines) == 1 + 2 * (1 + 2)  # two lengths; hf without a rate, adam with two
    assert captured.err.count("held-out error") == 2 * 2 * 3
    assert figure.stat().st_size > 5_000
    assert main([*words, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == 12
    assert {"optimizer", "cell", "length", "seed", "solved", "error", "seconds", "sequences", "curve"} <= set(
        runs[0]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--lengths", "x"],
        ["--lengths", "1"],
        ["--optimizers", "newton"],
        ["--cells", "gru"],
        ["--rates", "fast"],
        ["--out", "figure.txt"],
        ["--optimizers", "lstm-online"],
        ["--seconds", "0"],
    ],
)
def test_faults_end_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["marked-addition", "--seconds", "1", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_hessian_free_solves_a_short_sequence() -> None:
    result = run_addition(AdditionSettings(length=10, hidden=20, seconds=60, sequences=200, iterations=40))
    assert result.solved
    assert result.error < 0.002
    assert result.sequences == 200 * result.updates
    assert result.curve[-1][1] == result.error


def test_the_first_recurrent_weights_have_a_radius_near_one() -> None:
    import torch

    model = model_for(AdditionSettings(hidden=100))
    radius = torch.linalg.eigvals(model.get_parameter("layers.0.W_hh")).abs().max()
    assert 0.9 < radius.item() < 1.4
