"""A full disk: the last checkpoint stays good, the run says so, and goes on when there is room again."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnnewton.lab.run_folder import RunFolder

TEXT = "the quick brown fox jumps over the lazy dog. " * 80


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB; skipped where mounting is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    try:
        allowed = (
            os.geteuid() == 0 and subprocess.run(mounting, capture_output=True, check=False).returncode == 0
        )
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("no small file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_checkpoint(small_disk: Path, tmp_path: Path) -> None:
    text, run = tmp_path / "text.txt", small_disk / "run"
    text.write_text(TEXT)
    words = [sys.executable, "-m", "rnnewton", "train", str(text), "--run", str(run)]
    words += ["--hidden", "6", "--threads", "1"]
    assert subprocess.run([*words, "--steps", "2"], capture_output=True, check=False).returncode == 0
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:  # all the room that there is …
            file.write(b"x" * 4096)
    os.truncate(
        ballast, ballast.stat().st_size - 4 * 4096
    )  # … but for some pages: the first writes still work
    full = subprocess.run([*words, "--steps", "50"], capture_output=True, text=True, check=False)
    assert full.returncode == 1, full.stderr
    said = full.stderr.strip().splitlines()[-1]
    assert "cannot be written" in said, said
    assert "good" in said and "free some space" in said and "Traceback" not in full.stderr
    newest = RunFolder(run).newest(lambda line: pytest.fail(line))
    assert newest is not None
    ballast.unlink()
    again = subprocess.run([*words, "--steps", "5"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
