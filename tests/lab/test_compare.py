"""Runs side by side: finished and unfinished ones, and the thesis's figures where there are some."""

import json
from pathlib import Path

import pytest

from rnnewton.cli import main
from rnnewton.lab.compare import as_markdown, as_text, row_of
from rnnewton.lab.configuration import changed, to_document
from rnnewton.lab.presets import find
from rnnewton.lab.run_folder import RunFolder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    settings = changed(find("thesis/mlstm").settings, {"preset": "thesis/mlstm"})
    for name in ("done", "open"):
        run = RunFolder(tmp_path / name)
        run.path.mkdir()
        run.write_config(to_document(settings))
        for step, bits in ((1, 4.0), (2, None), (3, 3.5), (4, 3.75)):
            run.append({"step": step, "seconds": 10.0 * step, "work": 0.5 * step, "validation_bits": bits})
    RunFolder(tmp_path / "done").write_done(
        {
            "step": 4,
            "seconds": 40.0,
            "work": 2.0,
            "parameters": 123_456,
            "training_bits": 3.1,
            "validation_bits": 3.5,
            "test_bits": 3.6,
            "reason": "steps",
        }
    )
    return tmp_path / "done", tmp_path / "open"


def test_rows_hold_what_the_folders_say(runs: tuple[Path, Path]) -> None:
    done, unfinished = (row_of(path) for path in runs)
    assert (done.finished, done.test_bits, done.parameters) == (True, 3.6, 123_456)
    assert (unfinished.finished, unfinished.test_bits, unfinished.validation_bits) == (False, None, 3.5)
    assert unfinished.step == 4 and unfinished.work == 2.0
    assert done.thesis is not None and done.thesis.test == 1.82


def test_tables(runs: tuple[Path, Path]) -> None:
    rows = [row_of(path) for path in runs]
    text = as_text(rows)
    assert (
        "thesis/mlstm, table 4.4" in text and "215,900" in text and "1.820" in text and "(unfinished)" in text
    )
    lines = as_markdown(rows).splitlines()
    assert len(lines) == 6 and len({line.count("|") for line in lines}) == 1


def test_json(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["finished"] for run in document["runs"]] == [True, False]
    assert document["runs"][0]["thesis"]["validation"] == 1.86
