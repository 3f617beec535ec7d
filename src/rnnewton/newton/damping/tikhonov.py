"""Tikhonov damping (chapter 3.3): lambda on the diagonal of the curvature, moved as Levenberg and Marquardt
do.
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

_FLOOR_SHARE = 1e-3  # of the lambda that the user gave
# When the quadratic promises more than the whole loss, lambda is orders of magnitude too small: as many as
# the promise is too large, for where lambda rules, q goes as 1 / lambda.
_LEAP, _LONGEST_LEAP = 10.0, 1e4
_CEILING = 1e10


@dataclass(frozen=True)
class Tikhonov(Damping):
    """lam · I. Without a floor a short CG run hides that lambda has decayed to nothing, until it is
    needed.
    """

    lam: float
    factor: float = 2 / 3
    floor: float | None = None  # None: a thousandth of `lam`
    adapt: bool = True
    watch: Watch = "end"

    kind: ClassVar[str] = "tikhonov"

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)
        check_factor(self.factor)
        check_watch(self.watch)
        if self.floor is None:
            object.__setattr__(self, "floor", self.lam * _FLOOR_SHARE)

    @property
    def every(self) -> int | None:
        return self.watch if self.adapt and isinstance(self.watch, int) else None

    def terms(self) -> Terms:
        return Terms(tikhonov=self.lam)

    def adapted(self, evidence: Evidence, start: Damping) -> Damping:
        if not self.adapt:
            return self
        if evidence.absurd and evidence.last:
            return self._at(self.lam * min(max(evidence.promise, _LEAP), _LONGEST_LEAP))
        if evidence.p is None or not moves(evidence, self.watch):
            return self
        return self._at(moved(self.lam, evidence.p, self.factor))

    def grown(self) -> Damping:
        return self._at(self.lam / self.factor**2) if self.adapt else self

    def _at(self, lam: float) -> Tikhonov:
        return replace(self, lam=min(max(lam, self.floor or 0.0), _CEILING))
