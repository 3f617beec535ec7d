"""One conjugate gradient run inside an outer step: watched, stopped for a named reason, and shared by x_q and
x_f.

p: number of parameters. x and directions are (p,). x_q is CG's own iterate, x_f the network's where
line-search damping alters it (else the same).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rnnewton.newton.conjugate_gradient import Iterate, conjugate_gradient
from rnnewton.newton.curvature import Quadratic
from rnnewton.newton.damping import Damping, Evidence, LineSearch, Structural, part_of
from rnnewton.newton.line_search import DirectionSearch
from rnnewton.newton.report import TracePoint
from rnnewton.newton.settings import HessianFreeSettings
from rnnewton.newton.stopping import (
    IterationLimit,
    LineSearchStalled,
    Progress,
    RelativeProgress,
    SecondsSpent,
    Stop,
    TrustLost,
    first_reason,
)
from rnnewton.newton.trust import Measured, Trust


@dataclass(frozen=True)
class Tick:
    """What a subscriber sees of a CG iteration. Numbers only: nothing that it does can change the run."""

    step: int
    iteration: int
    limit: int
    q: float
    seconds: float


@dataclass
class Run:
    """What a CG run came to."""

    damping: Damping  # the candidate after the watching
    x_q: Tensor
    x_f: Tensor
    q: float = 0.0
    iterations: int = 0
    reason: str = ""
    measured: Measured | None = None  # the last measurement of p …
    measured_at: int = -1  # … and its iteration
    kept: list[tuple[Tensor, float]] = field(default_factory=list[tuple[Tensor, float]])
    directions: list[Tensor] = field(default_factory=list[Tensor])
    products: list[Tensor] = field(default_factory=list[Tensor])
    trace: list[TracePoint] = field(default_factory=list[TracePoint])


def stops_of(settings: HessianFreeSettings, damping: Damping) -> list[Stop]:
    cg = settings.cg
    stops: list[Stop] = [
        TrustLost(),
        RelativeProgress(cg.window, cg.tolerance),
        IterationLimit(cg.iterations),
    ]
    line_search = part_of(damping, LineSearch)
    if line_search is not None:
        stops.append(LineSearchStalled(line_search.stalled))
    if cg.seconds is not None:
        stops.append(SecondsSpent(cg.seconds))
    return stops


class Descent:
    """Runs CG on a damped quadratic, watching the network's own loss as the damping asks."""

    def __init__(
        self,
        quadratic: Quadratic,
        trust: Trust,
        damping: Damping,
        settings: HessianFreeSettings,
        search: DirectionSearch | None = None,
        keep_directions: bool = False,
    ) -> None:
        self._quadratic = quadratic
        self._trust = trust
        self._start = damping
        self._settings = settings
        self._search = search
        self._keep_directions = keep_directions
        self._next_kept = 1.0

    def run(self, start: Tensor | None, notify: Callable[[int, float, float], None]) -> Run:
        """`notify(iteration, q, seconds)` after every iteration."""
        began = time.perf_counter()
        progress = Progress(self._start, self._start)
        stops = stops_of(self._settings, self._start)
        run = Run(self._start, self._quadratic.slope, self._quadratic.slope)
        for iterate in self._iterates(start):
            if iterate.ended is not None:
                run.reason = iterate.ended
                break
            progress.q.append(iterate.q)
            run.x_q, run.x_f, run.q, run.iterations = iterate.x, iterate.x, iterate.q, iterate.index
            stalled = self._follow(iterate)
            progress.stalled += stalled
            self._watch(iterate, run, progress)
            self._record(iterate, run, progress, bool(stalled))
            progress.seconds = time.perf_counter() - began
            if iterate.index > 0:
                notify(iterate.index, iterate.q, progress.seconds)
            reason = first_reason(stops, progress) if iterate.index > 0 else None
            if reason is not None:
                run.reason = reason
                break
        run.damping = progress.damping
        if self._search is not None:
            run.x_f = self._search.x
        return run

    def _iterates(self, start: Tensor | None) -> Iterator[Iterate]:
        """CG from the warm start, or from zero where that promises nothing on this quadratic."""
        quadratic, refresh = self._quadratic, self._settings.cg.refresh
        for guess in (start, None):
            iterates = conjugate_gradient(
                quadratic.multiply, quadratic.slope, guess, quadratic.solve, refresh=refresh
            )
            first = next(iterates)
            if guess is None or first.q < 0:
                yield first
                yield from iterates
                return

    def _follow(self, iterate: Iterate) -> int:
        """Line-search damping: x_f along this direction; a warm start is its first direction. 1 for a stalled
        one.
        """
        if self._search is None:
            return 0
        if iterate.direction is None:
            if iterate.q < 0:
                self._search.follow(iterate.x)
            return 0
        return 0 if self._search.follow(iterate.alpha * iterate.direction) else 1

    def _watch(self, iterate: Iterate, run: Run, progress: Progress) -> None:
        """Every so many iterations p is measured and the candidate damping moves; A keeps what it started
        with.
        """
        every = self._start.every
        if every is None or iterate.index == 0 or iterate.index % every != 0:
            return
        first = run.measured is None
        run.measured = self._trust.measure(iterate.x, iterate.q)
        run.measured_at = iterate.index
        evidence = Evidence(run.measured.p, run.measured.promise, last=False, first=first)
        progress.damping = progress.damping.adapted(evidence, self._start)

    def _record(self, iterate: Iterate, run: Run, progress: Progress, stalled: bool) -> None:
        final = self._settings.final
        if final.iterate == "backtracking" and iterate.index >= self._next_kept:
            run.kept.append((iterate.x, iterate.q))
            while self._next_kept <= iterate.index:
                self._next_kept *= final.spacing
        if self._keep_directions and iterate.direction is not None and iterate.product is not None:
            run.directions.append(iterate.direction)
            run.products.append(iterate.product)
        if self._settings.trace:
            run.trace.append(_traced(iterate, run, progress.damping, stalled))


def _traced(iterate: Iterate, run: Run, damping: Damping, stalled: bool) -> TracePoint:
    structural = part_of(damping, Structural)
    measured = run.measured if run.measured_at == iterate.index else None
    return TracePoint(
        iteration=iterate.index,
        q=iterate.q,
        alpha=iterate.alpha,
        f=None if measured is None else measured.f,
        p=None if measured is None else measured.p,
        mu=None if structural is None else structural.mu,
        epsilon_stalled=stalled,
    )


def best_kept(
    kept: Sequence[tuple[Tensor, float]], last: tuple[Tensor, float], loss: Callable[[Tensor], float]
) -> tuple[Tensor, float]:
    """CG backtracking (Martens 2010): back from the last iterate through the kept ones, as long as the loss
    falls.
    """
    best, value = last, loss(last[0])
    for candidate in reversed(kept):
        if candidate[0] is last[0]:
            continue
        tried = loss(candidate[0])
        if not tried < value and value == value:  # NaN is worse than anything
            break
        best, value = candidate, tried
    return best
