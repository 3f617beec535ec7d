"""When a conjugate gradient run ends. Each reason is a small object with a name; the name goes into the
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from rnnewton.newton.damping import Damping


@dataclass
class Progress:
    """What a run has come to."""

    start: Damping  # the damping that the run began with
    damping: Damping  # the candidate that watching has moved
    q: list[float] = field(default_factory=list[float])  # q(0), q(1), …
    seconds: float = 0.0
    stalled: int = 0  # directions along which the network's own loss did not fall

    @property
    def iterations(self) -> int:
        return len(self.q) - 1


class Stop(Protocol):
    name: ClassVar[str]

    def __call__(self, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class RelativeProgress:
    """(q(i) − q(i−k)) / q(i) < k·ε with i > k and q(i) < 0: the last k iterations have won nearly nothing."""

    window: int = 10
    tolerance: float = 5e-4
    name: ClassVar[str] = "relative progress"

    def __call__(self, progress: Progress) -> bool:
        i, q = progress.iterations, progress.q
        if i <= self.window or not q[i] < 0:
            return False
        return (q[i] - q[i - self.window]) / q[i] < self.window * self.tolerance


@dataclass(frozen=True)
class IterationLimit:
    limit: int = 100
    name: ClassVar[str] = "iteration limit"

    def __call__(self, progress: Progress) -> bool:
        return progress.iterations >= self.limit


@dataclass(frozen=True)
class TrustLost:
    """Structural damping's candidate has reached 3·mu0."""

    name: ClassVar[str] = "quadratic not trusted"

    def __call__(self, progress: Progress) -> bool:
        return not progress.damping.trusted(progress.start)


@dataclass(frozen=True)
class LineSearchStalled:
    """More than so many directions along which the network's own loss did not fall."""

    limit: int = 5
    name: ClassVar[str] = "line search stalled"

    def __call__(self, progress: Progress) -> bool:
        return progress.stalled > self.limit


@dataclass(frozen=True)
class SecondsSpent:
    """A budget of wall-clock time; the only stop whose moment is not the same in every run."""

    budget: float
    name: ClassVar[str] = "seconds spent"

    def __call__(self, progress: Progress) -> bool:
        return progress.seconds >= self.budget


def first_reason(stops: Sequence[Stop], progress: Progress) -> str | None:
    return next((stop.name for stop in stops if stop(progress)), None)
