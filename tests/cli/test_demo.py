"""What `make demo` runs, for a moment instead of two minutes."""

import json
from pathlib import Path

import pytest

from rnnewton.cli import main


@pytest.mark.slow
def test_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--seconds", "0.5", "--run", "demo"]) == 0
    out, err = capsys.readouterr()
    assert "bits per character" in out and "What the model writes" in out and "demo" in out
    assert "builtin" in err and "step    1" in err
    run = tmp_path / "demo"
    assert (run / "samples" / "demo.txt").read_text().startswith("The ")
    assert json.loads((run / "done.json").read_text())["reason"] == "seconds"
    for line in out.splitlines():  # everything that it names is there
        if line.startswith("  ") and " ".join(line.split()[:1]) in (
            "config.toml",
            "metrics.jsonl",
            "curves.png",
            "checkpoints/",
        ):
            assert (run / line.split()[0]).exists()
