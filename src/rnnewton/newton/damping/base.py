"""What a damping is: terms added to the curvature, and a rule that moves them when the quadratic proves right
or wrong.

Dampings are values: a rule gives a new one. `a + b` is a damping too. A new scheme is one file beside this
one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

Watch = int | Literal["end"]  # measure p every so many CG iterations, or once at the end of a run


@dataclass(frozen=True)
class Terms:
    """A = G + structural * G_s + tikhonov * I + metric * M, M being the preconditioner's model of G."""

    structural: float = 0.0
    form: str = "matching"
    tap: str = "output"
    tikhonov: float = 0.0
    metric: float = 0.0


@dataclass(frozen=True)
class Evidence:
    """One measurement of how far the quadratic can be trusted."""

    p: float | None  # (f(x) − f(0)) / (q(x) − q(0)); None where rounding hides it; −inf where f is not finite
    promise: float = 0.0  # −q(x) over the loss: above 1 the quadratic promises more than there is
    last: bool = False  # taken at the end of a CG run
    first: bool = True  # nothing was measured before in this run

    @property
    def absurd(self) -> bool:
        return self.promise > 1


class Damping:
    """The part that every scheme shares; each method may be left as it is."""

    kind: ClassVar[str] = "none"

    def __add__(self, other: Damping) -> Damping:
        from rnnewton.newton.damping.combined import Combined

        return Combined((*self.parts, *other.parts))

    @property
    def parts(self) -> tuple[Damping, ...]:
        return (self,)

    @property
    def every(self) -> int | None:
        """CG iterations between two measurements of p inside a run; None: only at its end."""
        return None

    def terms(self) -> Terms:
        return Terms()

    def adapted(self, evidence: Evidence, start: Damping) -> Damping:
        """The damping after a measurement; `start` is the one that the run began with."""
        return self

    def grown(self) -> Damping:
        """The damping after a refused step."""
        return self

    def trusted(self, start: Damping) -> bool:
        """False ends the CG run: the quadratic is not trusted any more."""
        return True

    def state(self) -> list[dict[str, Any]]:
        """Its values, as JSON can hold them."""
        return [{"kind": part.kind, **_fields(part)} for part in self.parts]


def _fields(part: Any) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(part).items()}


def moves(evidence: Evidence, watch: Watch) -> bool:
    """Whether a part that watches so often moves on this measurement.

    A run too short to be watched inside is judged at its end.
    """
    if evidence.p is None:
        return False
    return evidence.last if watch == "end" else (evidence.first or not evidence.last)


def moved(value: float, p: float, factor: float) -> float:
    """Levenberg-Marquardt: p < 1/4 asks for more damping, p > 3/4 for less (the thesis prints it
    inverted).
    """
    if p < 0.25:
        return value / factor
    if p > 0.75:
        return value * factor
    return value


def check_weight(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value!r} must be a finite number, zero or more")


def check_factor(factor: float) -> None:
    if not 0 < factor <= 1:
        raise ValueError(
            f"factor={factor!r} must be above 0 and at most 1: it is what the damping is multiplied by"
        )


def check_watch(watch: Watch) -> None:
    if watch != "end" and (isinstance(watch, str) or watch < 1):
        raise ValueError(f"watch={watch!r} must be a number of CG iterations, or 'end' for once a step")
