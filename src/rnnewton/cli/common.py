"""What the commands share: settings as flags, the layers of settings, and how results are shown.

Flags are made from the dataclasses of lab/settings.py by plain argparse. tyro was weighed: it builds one
complete object from flags and defaults, and here a flag must be known as *given or not*, because flag beats
TOML beats preset beats default, and a run that goes on compares only what was given. argparse needs no more
lines for that.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rnnewton.lab.configuration import flag, from_document, read_value
from rnnewton.lab.settings import GROUPS, all_settings
from rnnewton.text.errors import UserError


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, all else on standard error"
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting, in groups; an absent flag is an absent attribute."""
    names = ["limits", *(name for name in GROUPS if name != "limits")]  # the most used first
    groups = {name: parser.add_argument_group((GROUPS[name].__doc__ or name).lower()) for name in names}
    for group, each in all_settings():
        if (
            each.name == "text" or not each.metadata["flag"]
        ):  # the text is the command's own positional argument
            continue
        kind = each.metadata["kind"]
        help_text = _help(each.metadata["help"], each.default)
        if kind.shown:
            groups[group].add_argument(
                flag(each.name), default=argparse.SUPPRESS, metavar=kind.shown, dest=each.name, help=help_text
            )
        else:
            groups[group].add_argument(
                flag(each.name),
                default=argparse.SUPPRESS,
                dest=each.name,
                help=help_text,
                action=argparse.BooleanOptionalAction,
            )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags and the TOML file give, flat and checked; the flags win."""
    given: dict[str, Any] = {}
    if getattr(args, "config", None) is not None:
        given |= from_document(_read_toml(Path(args.config)), args.config)
    names = {each.name for _, each in all_settings()}
    for name, value in vars(args).items():
        if name in names and value is not None:
            given[name] = read_value(name, value)
    if getattr(args, "preset", None) is not None:
        given["preset"] = args.preset
    return given


def show_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=1, default=str))


def say(line: str) -> None:
    """A line for the person, on standard error, so that standard output holds results alone."""
    print(line, file=sys.stderr, flush=True)


def warn(line: str) -> None:
    say(f"rnnewton: warning: {line}")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"--config {path}: {(error.strerror or 'cannot be read').lower()}; give a TOML file."
        ) from error
    except ValueError as error:
        raise UserError(f"--config {path} is not TOML: {error}.") from error


def _help(text: str, default: Any) -> str:
    text = text.replace("%", "%%")
    if default is None or isinstance(default, bool) or "default" in text:
        return text
    return f"{text} (default: {default})"
