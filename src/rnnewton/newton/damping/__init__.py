"""Dampings: values that add with `+`. One file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rnnewton.newton.damping.base import Damping, Evidence, Terms
from rnnewton.newton.damping.combined import Combined
from rnnewton.newton.damping.line_search import LineSearch
from rnnewton.newton.damping.metric import Metric
from rnnewton.newton.damping.structural import Structural
from rnnewton.newton.damping.tikhonov import Tikhonov

__all__ = [
    "Combined",
    "Damping",
    "Evidence",
    "LineSearch",
    "Metric",
    "Structural",
    "Terms",
    "Tikhonov",
    "part_of",
]

KINDS: dict[str, Any] = {kind.kind: kind for kind in (Structural, Tikhonov, LineSearch, Metric)}

_Part = TypeVar("_Part", bound=Damping)


def part_of(damping: Damping, kind: type[_Part]) -> _Part | None:
    """The part of one kind, or None."""
    return next((part for part in damping.parts if isinstance(part, kind)), None)


def restored(state: Sequence[dict[str, Any]]) -> Damping:
    """The damping that `state()` was taken of."""
    parts: list[Damping] = []
    for entry in state:
        fields = {key: value for key, value in entry.items() if key != "kind"}
        parts.append(KINDS[entry["kind"]](**fields) if entry["kind"] in KINDS else Damping())
    return parts[0] if len(parts) == 1 else Combined(tuple(parts))
