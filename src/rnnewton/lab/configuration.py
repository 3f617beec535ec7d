"""Settings as they are written: flat by name, as a TOML document, and one laid over another.

Flag beats TOML beats preset beats default: each layer is a dictionary of what it gives, `changed` lays it
over the settings below.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from rnnewton.lab.settings import GROUPS, Settings, all_settings
from rnnewton.lab.values import Kind
from rnnewton.text.errors import UserError

_GROUP_OF = {each.name: group for group, each in all_settings()}
_FIELDS = {each.name: each for _, each in all_settings()}


def read_value(name: str, given: Any, where: str = "") -> Any:
    """One value, checked; `where` tells the user which of his words is meant."""
    kind = cast("Kind", _FIELDS[name].metadata["kind"])
    try:
        return kind.read(given)
    except ValueError as error:
        raise UserError(f"{where or flag(name)} {_shown(given)}: {error}.") from None


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def from_document(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a TOML document, flat and checked; in tables by group as config.toml, or at the top."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key == "preset":
            found[key] = _text(value, f"{where}: preset")
        elif key in GROUPS and isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            names = [each.name for each in fields(GROUPS[key])]
            for name, entry in table.items():
                found[_known(name, names, f"{where}, table [{key}]")] = (name, entry)
        else:
            found[_known(key, [*_FIELDS, *GROUPS, "preset"], where)] = (key, value)
    return {
        name: given if name == "preset" else read_value(name, given[1], f"{where}: {given[0]} =")
        for name, given in found.items()
    }


def changed(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings with the given ones, flat by name, in their places."""
    for name, value in given.items():
        if name == "preset":
            settings = replace(settings, preset=value)
            continue
        group = _GROUP_OF[name]
        settings = replace(settings, **{group: replace(getattr(settings, group), **{name: value})})
    return settings


def flat(settings: Settings) -> dict[str, Any]:
    """Every setting by its name."""
    return {each.name: getattr(getattr(settings, group), each.name) for group, each in all_settings()}


def to_document(settings: Settings) -> dict[str, Any]:
    """What config.toml holds: a table per group; a setting that is None is left out."""
    document: dict[str, Any] = {} if settings.preset is None else {"preset": settings.preset}
    for group, each in all_settings():
        value = getattr(getattr(settings, group), each.name)
        if value is not None:
            document.setdefault(group, {})[each.name] = list(value) if isinstance(value, tuple) else value
    return document


def is_fixed(name: str) -> bool:
    """Whether a run that goes on must keep this setting."""
    return name == "preset" or bool(_FIELDS[name].metadata["fixed"])


def _known(name: str, names: list[str], where: str) -> str:
    """The name itself, `-` or `_`; else the user's error with the nearest that is known."""
    plain = name.replace("-", "_")
    if plain in names and plain in _FIELDS:
        return plain
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    near = near or difflib.get_close_matches(plain, [*_FIELDS], n=1, cutoff=0.0)
    raise UserError(f"{where}: there is no setting {name!r}; the nearest one is {near[0]!r}.")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: a name is expected, not {_shown(value)}.")
    return value


def _shown(given: Any) -> str:
    text = given if isinstance(given, str) else repr(given)
    return text if len(text) <= 60 else text[:57] + "…"
