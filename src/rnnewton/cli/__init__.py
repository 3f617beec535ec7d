"""The command line: `main` parses, calls and shows. Each command is a file with `add_arguments(parser)` and
`run(args)`.

Nothing heavy is imported before a command is chosen, so that help is there at once.
"""

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from rnnewton.text.errors import UserError

# command -> (module, what it does in one line), in the order of the help text
COMMANDS = {
    "train": ("train", "train a model on a text; the same command goes on where it stopped"),
    "evaluate": ("evaluate", "score a text with a trained model, in bits per character"),
    "sample": ("sample", "let a trained model write"),
    "time-lag": ("time_lag", "probe how long a model remembers an open bracket"),
    "jacobians": ("jacobians", "measure how far back a trained model's state reaches"),
    "presets": ("presets", "list the thesis's experiments, or show one"),
    "compare": ("compare", "put runs side by side"),
    "marked-addition": ("marked_addition", "the problem of remembering two marked numbers"),
    "bench": ("bench", "time gradient and curvature products beside the alternatives"),
    "demo": ("demo", "train for about two minutes on the built-in corpus and look at the result"),
}

EXAMPLES = """\
examples:
  rnnewton train                            learn from the text that comes with Python
  rnnewton train novel.txt --seconds 600    learn from a file for ten minutes
  rnnewton sample runs/NAME                 let the model write
  rnnewton evaluate runs/NAME other.txt     score another text

rnnewton COMMAND --help explains a command."""


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one sentence, like all others."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: something failed; 2: the input is at fault; 130: interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except UserError as error:
        print(f"rnnewton: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        if type(error).__name__ != "SavedModelError":  # its module needs torch, which not every command loads
            raise
        print(f"rnnewton: {error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rnnewton: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone, as `| head` does
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"rnnewton: {_in_words(error)}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), None)
    parser = Parser(
        prog="rnnewton",
        description="Train recurrent networks with curvature: give it a text, it gives back a model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, (module, line) in COMMANDS.items():
        each = commands.add_parser(
            name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False
        )
        if name == command:
            import_module(f"rnnewton.cli.{module}").add_arguments(each)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise UserError(_unknown_word(unknown[0], commands.choices.get(args.command or "")))
    if args.version:
        from rnnewton import __version__

        print(f"rnnewton {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    return int(import_module(f"rnnewton.cli.{COMMANDS[args.command][0]}").run(args))


def _unknown_word(word: str, command: argparse.ArgumentParser | None) -> str:
    """A word that nobody asked for, and the nearest flag that there is."""
    name = "rnnewton" if command is None else command.prog
    flags = (
        [] if command is None else [flag for flag in command._option_string_actions if flag.startswith("--")]
    )
    near = difflib.get_close_matches(word.partition("=")[0], flags, n=1, cutoff=0.5)
    hint = f"the nearest one is {near[0]}" if near and word.startswith("-") else f"see `{name} --help`"
    return f"{name} does not know {word}; {hint}."


def _in_words(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{place}."
