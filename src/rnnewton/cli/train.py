"""`rnnewton train [TEXT]`: learn from a text, or go on where the same command stopped."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnewton.cli.common import add_json, add_settings, given_settings, say, show_json

if TYPE_CHECKING:
    from rnnewton.lab.session import Outcome, Watcher

NOTES = """\
Every setting may also stand in a TOML file (--config FILE), under the name of its flag without the dashes;
the config.toml of a run is such a file. A flag beats the file, the file beats the preset, the preset beats
the default.

The run folder holds config.toml, environment.json, metrics.jsonl, checkpoints, curves.png and done.json.
The same command goes on with a run that was stopped, by Ctrl-C or by anything else; a larger --steps or
--seconds goes on with a finished one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rnnewton train [TEXT] [--run FOLDER] [--seconds X] [--steps N] [any other setting]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = NOTES
    parser.add_argument(
        "text",
        nargs="?",
        default=None,
        metavar="TEXT",
        help="file to learn from, or builtin, penn:FOLDER, penn-char:FOLDER, enwik8, text8",
    )
    parser.add_argument(
        "--run",
        metavar="FOLDER",
        help="where the run is kept (default: runs/NAME-DATE); the same one goes on with it",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="an experiment of the thesis; see `rnnewton presets`"
    )
    parser.add_argument("--config", metavar="FILE", help="settings as TOML")
    add_json(parser)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    given = given_settings(args)
    from rnnewton.lab.run_folder import RunFolder
    from rnnewton.lab.session import run_name, train
    from rnnewton.lab.training import CannotWrite, Interrupted

    folder = RunFolder(Path(args.run) if args.run else Path("runs") / run_name(given))
    if not args.run:
        say(f"run folder: {folder.path}")
    try:
        outcome = train(folder, given, watcher(given, folder.path))
    except Interrupted:
        say(f"stopped after a checkpoint; go on with: {resuming(folder.path)}")
        return 130
    except CannotWrite as error:
        say(f"rnnewton: {error}.")
        return 1
    if args.json:
        show_json({**outcome.result, "run": str(folder.path)})
    else:
        show(outcome)
    return 0


def resuming(folder: Path) -> str:
    return f"rnnewton train --run {shlex.quote(str(folder))}"


def watcher(given: dict[str, Any], folder: Path) -> Watcher:
    """A live line where somebody can see it, plain lines elsewhere."""
    from rich.console import Console

    from rnnewton.lab.progress import Plain, TensorBoard, Terminal

    console = Console(stderr=True)
    seen = (
        Terminal(console)
        if console.is_terminal
        else Plain(lambda line: print(line, file=sys.stderr, flush=True))
    )
    return TensorBoard(seen, folder / "tensorboard") if given.get("tensorboard") else seen


def show(outcome: Outcome) -> None:
    """The result in words, on standard output."""
    result = outcome.result
    reasons = {
        "steps": "all steps are done",
        "seconds": "the time is used up",
        "patience": "validation stopped improving",
    }
    if outcome.before:
        print(
            "This run is finished; nothing was changed. A larger --steps, --seconds or --patience goes on"
            " with it."
        )
    print(
        f"Ended after step {result['step']}, {result['seconds']:.0f} seconds:"
        f" {reasons.get(result['reason'], '')}."
    )
    names = (("training", "training_bits"), ("validation", "validation_bits"), ("test", "test_bits"))
    scores = [f"{name} {result[key]:.3f}" for name, key in names if result.get(key) is not None]
    where = f" (step {result['best_step']})" if result.get("best_step") is not None else ""
    print(f"Best model{where}: {', '.join(scores)} bits per character; {result['parameters']:,} weights.")
    folder = shlex.quote(str(outcome.run.path))
    print(f"All of it is in {folder}; let the model write with: rnnewton sample {folder}")
