"""Experiments by name: complete settings, and what was printed of them."""

import difflib
from dataclasses import dataclass
from functools import cache

from rnnewton.lab.settings import Settings
from rnnewton.text.errors import UserError


@dataclass(frozen=True)
class Printed:
    """What the thesis prints of an experiment: bits per character; parameters, and the alphabet they had."""

    parameters: int
    symbols: int
    table: str
    training: float | None = None
    validation: float | None = None
    test: float | None = None


@dataclass(frozen=True)
class Preset:
    name: str
    about: str
    settings: Settings
    corpus: str  # the source that it was run on
    split: str | None  # how that source was cut; another text is cut as any text is
    printed: Printed


@cache
def presets() -> dict[str, Preset]:
    """Every preset by its name, in the thesis's order."""
    from rnnewton.lab.presets import thesis

    return {preset.name: preset for preset in thesis.experiments()}


def find(name: str) -> Preset:
    """One preset, or the user's error with the nearest name."""
    known = presets()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.3) or [next(iter(known))]
    raise UserError(
        f"There is no preset {name!r}; the nearest one is {near[0]!r}, and `rnnewton presets` lists all."
    )
