"""`rnnewton demo`: about two minutes that show what there is: train on the built-in text, write, say where
all lies.
"""

from __future__ import annotations

import argparse
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rnnewton.cli.common import add_json, say, show_json

if TYPE_CHECKING:
    from rnnewton.lab.run_folder import RunFolder

SECONDS = 100.0
SAMPLE = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="X",
        help=f"seconds of training (default: {SECONDS:g})",
    )
    parser.add_argument("--run", metavar="FOLDER", help="where the run is kept (default: demo/DATE)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    say(
        "This trains a multiplicative LSTM on the text that comes with Python, without any tuning, by"
        " Hessian-free"
        " optimisation.\nWatch the bits per character fall; 8 would be a byte, 1 would be very good.\n"
    )
    from rnnewton.cli.train import resuming, watcher
    from rnnewton.lab.configuration import read_value
    from rnnewton.lab.run_folder import RunFolder
    from rnnewton.lab.session import train
    from rnnewton.lab.training import CannotWrite, Interrupted

    folder = RunFolder(Path(args.run or f"demo/{datetime.now():%Y-%m-%d-%H%M%S}"))
    given = {"seconds": read_value("seconds", args.seconds)}
    try:
        outcome = train(folder, given, watcher(given, folder.path))
    except Interrupted:
        say(f"stopped after a checkpoint; go on with: {resuming(folder.path)}")
        return 130
    except CannotWrite as error:
        say(f"rnnewton: {error}.")
        return 1
    text = _sample(folder)
    if args.json:
        show_json({**outcome.result, "run": str(folder.path), "sample": text})
        return 0
    result = outcome.result
    print(
        f"\nAfter {result['seconds']:.0f} seconds and {result['step']} steps: {_scores(result)} bits per"
        " character."
    )
    print(f"\nWhat the model writes:\n\n{text}\n")
    _show_places(folder)
    return 0


def _sample(folder: RunFolder) -> str:
    from rnnewton.lab.evaluation import alphabet_of
    from rnnewton.lab.sampling import SamplingSettings, as_text, sample
    from rnnewton.lab.trained import trained_model

    model = trained_model(str(folder.path))
    settings = SamplingSettings(prompt="The ", length=SAMPLE, temperature=0.8)
    text = "The " + "".join(as_text(sample(model, settings), alphabet_of(model)))
    folder.samples.mkdir(exist_ok=True)
    (folder.samples / "demo.txt").write_text(text + "\n", encoding="utf-8")
    return text


def _scores(result: dict[str, object]) -> str:
    names = (("validation", "validation_bits"), ("test", "test_bits"))
    return ", ".join(f"{name} {result[key]:.3f}" for name, key in names if result.get(key) is not None)


def _show_places(folder: RunFolder) -> None:
    path = shlex.quote(str(folder.path))
    print(f"Everything lies in {path}:")
    for name, what in (
        ("config.toml", "every setting, also those that were chosen"),
        ("metrics.jsonl", "one line per step"),
        ("curves.png", "bits, damping and CG iterations, drawn"),
        ("checkpoints/", "the newest and the best model"),
        ("samples/demo.txt", "the text above"),
        ("done.json", "the result"),
    ):
        print(f"  {name:<17} {what}")
    print("\nGo on from here (in this folder, with .venv/bin/rnnewton or an activated .venv):")
    print(f"  rnnewton train --run {path} --seconds 600        train it further")
    print(f"  rnnewton sample {path} --prompt 'A class '       let it write")
    print("  rnnewton train YOUR.txt                          learn from a text of yours")
