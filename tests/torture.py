"""Kill a training run again and again, in every way, and compare what comes out with a run that nobody
touched.

    python tests/torture.py [--kills 50] [--seed 0]

Half of the kills are SIGKILL after a random time; the others come at a chosen write to the disk: before it,
or inside it, when half of a file is there. After each one the same command goes on. At the end the weights
must be the same to the bit, and the metrics the same but for the seconds, each step once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Runs the command line in a process that dies at its n-th write to the disk; a dying fsync leaves half of its
# file.
MORTAL = """
import os, sys
limit, count = int(sys.argv[1]), 0

def mortal(function, torn=False):
    def called(*arguments, **options):
        global count
        count += 1
        if count == limit:
            if torn:
                path = f"/proc/self/fd/{arguments[0]}"
                if os.path.isfile(path):
                    os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return called

os.fsync = mortal(os.fsync, torn=True)
for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
    setattr(os, name, mortal(getattr(os, name)))
from rnnewton.cli import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Killing:
    """What a torture came to."""

    kills: int
    in_writes: int
    seconds: float
    same_weights: bool
    same_metrics: bool
    steps: int


def text_of(characters: int) -> str:
    """Text that every Python carries."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))[:characters]


def command(text: Path, run: Path, steps: int, extra: tuple[str, ...] = ()) -> list[str]:
    return [
        "train",
        str(text),
        "--run",
        str(run),
        "--steps",
        str(steps),
        "--hidden",
        "12",
        "--threads",
        "1",
        *extra,
    ]


def start(words: list[str], dies_at: int | None = None) -> subprocess.Popen[bytes]:
    program = ["-m", "rnnewton"] if dies_at is None else ["-c", MORTAL, str(dies_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )


def finish(process: subprocess.Popen[bytes]) -> int:
    _, said = process.communicate(timeout=300)
    if process.returncode not in (0, -9):
        raise RuntimeError(f"the run failed with {process.returncode}: {said.decode()}")
    return process.returncode


def metrics(run: Path) -> list[dict[str, object]]:
    """The lines of metrics without the only value that is a time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def final_weights(run: Path) -> dict[str, bytes]:
    """Model and training state of the last checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    return {name: (newest / name).read_bytes() for name in ("weights.safetensors", "state.safetensors")}


def torture(
    folder: Path, kills: int, seed: int, steps: int = 8, extra: tuple[str, ...] = (), characters: int = 30_000
) -> Killing:
    """One run left alone and one killed `kills` times, compared."""
    draw, began = random.Random(seed), time.monotonic()
    text = folder / "text.txt"
    text.write_text(text_of(characters))
    finish(start(command(text, folder / "untouched", steps, extra)))
    alone = time.monotonic() - began
    words = command(text, folder / "killed", steps, extra)
    killed = in_writes = 0
    while killed < kills:
        if draw.random() < 0.5:
            process = start(words, dies_at=draw.randint(1, 40 if draw.random() < 0.5 else 400))
            in_writes += finish(process) == -9
        else:
            process = start(words)
            time.sleep(draw.uniform(0.0, 1.2 * alone))
            process.kill()
            finish(process)
        killed += process.returncode == -9
        print(f"\r{killed} kills", end="", file=sys.stderr, flush=True)
        if (
            folder / "killed" / "done.json"
        ).exists() and killed < kills:  # it got through: the next one begins anew
            _check(folder, killed)
            _clear(folder / "killed")
    print(file=sys.stderr)
    finish(start(words))
    same_weights, same_metrics = _compared(folder)
    count = len(metrics(folder / "killed"))
    return Killing(killed, in_writes, time.monotonic() - began, same_weights, same_metrics, count)


def _compared(folder: Path) -> tuple[bool, bool]:
    untouched, killed = folder / "untouched", folder / "killed"
    return final_weights(untouched) == final_weights(killed), metrics(untouched) == metrics(killed)


def _check(folder: Path, killed: int) -> None:
    if _compared(folder) != (True, True):
        raise RuntimeError(
            f"after {killed} kills the run in {folder / 'killed'} is another one than {folder / 'untouched'}"
        )


def _clear(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kill a training run again and again, and compare what comes out."
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="FOLDER", help="work here and leave it")
    parser.add_argument("extra", nargs="*", help="more words for `rnnewton train`, after --")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = torture(folder, options.kills, options.seed, extra=tuple(options.extra))
    print(
        f"{found.kills} kills, {found.in_writes} of them at a write, {found.seconds:.0f} s;"
        f" {found.steps} steps; weights and training state"
        f" {'the same' if found.same_weights else 'DIFFERENT'},"
        f" metrics {'the same' if found.same_metrics else 'DIFFERENT'}"
    )
    return 0 if found.same_weights and found.same_metrics else 1


if __name__ == "__main__":
    sys.exit(main())
