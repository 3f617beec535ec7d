"""Structural damping (Martens & Sutskever 2011; chapter 3.3): mu times the curvature of a change of the
hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rnnewton.newton.damping.base import (
    Damping,
    Evidence,
    Terms,
    Watch,
    check_factor,
    check_watch,
    check_weight,
    moved,
    moves,
)

FORMS = ("matching", "squared")
TAPS = ("output", "cell")
_BOUND = 3.0  # inside one CG run the candidate stays within [mu0 / 3, 3 mu0]
_FLOOR_SHARE = 1e-3


@dataclass(frozen=True)
class Structural(Damping):
    """mu · G_s. Inside a run the curvature keeps mu0; the candidate that the watching moves is the next run's
    mu0.
    """

    mu: float
    form: str = "matching"  # "matching": S = 1 − H² at the last tanh's input; "squared": S = 1 at H_out
    tap: str = "output"  # "output", or "cell" for the internal state of gated cells
    adapt: bool = True
    watch: Watch = 5
    factor: float = 2 / 3
    times_lambda: bool = False  # Martens' weight: mu times the Tikhonov part's lambda
    states: tuple[str, ...] | None = None  # a plain module's submodules to penalise (squared form)
    floor: float | None = None  # None: a thousandth of `mu`

    kind: ClassVar[str] = "structural"

    def __post_init__(self) -> None:
        check_weight("mu", self.mu)
        check_factor(self.factor)
        check_watch(self.watch)
        if self.form not in FORMS:
            raise ValueError(f"form={self.form!r} is not known; the forms are 'matching' and 'squared'")
        if self.tap not in TAPS:
            raise ValueError(f"tap={self.tap!r} is not known; the taps are 'output' and 'cell'")
        if self.states is not None:
            object.__setattr__(self, "states", tuple(self.states))
        if self.floor is None:
            object.__setattr__(self, "floor", self.mu * _FLOOR_SHARE)

    @property
    def every(self) -> int | None:
        return self.watch if self.adapt and isinstance(self.watch, int) else None

    def terms(self) -> Terms:
        return Terms(structural=self.mu, form=self.form, tap=self.tap)

    def adapted(self, evidence: Evidence, start: Damping) -> Damping:
        if not self.adapt or evidence.p is None or not moves(evidence, self.watch):
            return self
        mu0 = start.mu if isinstance(start, Structural) else self.mu
        candidate = moved(self.mu, evidence.p, self.factor)
        return self._at(min(max(candidate, mu0 / _BOUND), mu0 * _BOUND))

    def grown(self) -> Damping:
        return self._at(self.mu / self.factor**2) if self.adapt else self

    def trusted(self, start: Damping) -> bool:
        """The thesis ends a CG run at mu(i) ≥ 3 mu0."""
        if self.every is None or not isinstance(start, Structural) or start.mu == 0:
            return True
        return self.mu < _BOUND * start.mu * (1 - 1e-9)  # 0.3 is 3 · 0.1, whatever the rounding

    def _at(self, mu: float) -> Structural:
        return replace(self, mu=max(mu, self.floor or 0.0))
