"""`rnnewton time-lag` and `rnnewton jacobians`, from outside."""

import json
from pathlib import Path

import pytest

from rnnewton.cli import main


def test_time_lag_table_json_and_figure(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["time-lag", str(finished), "--steps", "40", "--trials", "3"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "after '[['" in out
    assert "±" in out
    assert (finished / "time-lag.png").is_file()
    figure = tmp_path / "lag.svg"
    assert main([*words, "--json", "--out", str(figure)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lags"] == [10, 20, 30, 40]
    assert set(document["contexts"]) == {"[[", "Th"}
    assert figure.is_file()


def test_time_lag_for_another_bracket(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "time-lag",
        str(finished),
        "--steps",
        "10",
        "--opening",
        ";",
        "--closing",
        ".",
        "--context",
        "; ",
        "--json",
    ]
    assert main(words) == 0
    assert set(json.loads(capsys.readouterr().out)["contexts"]) == {"; "}


def test_jacobians_of_the_runs_own_text_and_of_another(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("the cat sat on the mat é " * 9)
    assert main(["jacobians", str(finished), str(other), "--lags", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["root_mean_square"][0]) == 6
    assert document["root_mean_square"][0][0] == pytest.approx(1.0)
    assert (finished / "jacobians.png").is_file()
    assert (
        main(["jacobians", str(finished)]) == 2
    )  # the run's validation text is shorter than the lags ask for
    assert "take fewer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["time-lag", "RUN", "--out", "x.txt"],
        ["time-lag", "RUN", "--out", "/nowhere/x.png"],
        ["time-lag", "RUN", "--opening", "é"],
        ["time-lag", "RUN", "--trials", "0"],
        ["time-lag", "nothing-here"],
        ["jacobians", "RUN", "--lags", "0"],
        ["jacobians", "RUN", "no-such-text"],
    ],
)
def test_faults_end_with_2(finished: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([str(finished) if word == "RUN" else word for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
