"""One outer step of Hessian-free optimisation (chapter 3.4), from the weights and a batch to the next
weights.

p: number of parameters. θ, ∇f, x: (p,). n_j are the gradient's examples, n_c ⊆ n_j the curvature's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rnnewton.newton.chunks import Batch
from rnnewton.newton.curvature import Quadratic
from rnnewton.newton.damping import Damping, Evidence, LineSearch, Metric, Structural, part_of
from rnnewton.newton.descent import Descent, Run, Tick, best_kept
from rnnewton.newton.line_search import DirectionSearch, Found, backtrack, first_decrease
from rnnewton.newton.measuring import Curved, Measuring, Slope
from rnnewton.newton.preconditioning.base import Preconditioner
from rnnewton.newton.problem import Problem
from rnnewton.newton.recovery import recovered
from rnnewton.newton.report import Meter, StepReport
from rnnewton.newton.settings import HessianFreeSettings
from rnnewton.newton.trust import Measured, Trust, rounding_of
from rnnewton.newton.vector import dot, norm

NOTHING_TO_DO = "the gradient is zero: nothing to do"
NOT_FINITE = "the loss or the gradient is not finite at the weights themselves"
NOT_LOWER = "no step length lowers the loss on the gradient batch"


@dataclass(frozen=True)
class Memory:
    """All that one outer step leaves to the next, beside the weights, the preconditioner and the random
    state.
    """

    damping: Damping
    worked: Damping  # the damping after the last step that came to something
    last: Tensor | None = None  # the last solution: what the next run starts from, times the decay
    failures: int = 0  # steps in a row that came to nothing
    widening: float = 1.0  # more curvature examples than asked for, while recovering
    step: int = 0
    seconds: float = 0.0
    work: float = 0.0  # characters of gradient arithmetic
    characters: int = 0


@dataclass
class OuterStep:
    problem: Problem
    settings: HessianFreeSettings
    memory: Memory
    preconditioner: Preconditioner
    generator: torch.Generator
    notify: Callable[[Tick], None]

    def run(self, batch: Batch, curvature_batch: Batch | None) -> tuple[Memory, StepReport]:
        """The thesis's algorithm, line by line. The weights change at its end, and only when the step is
        accepted.
        """
        self.meter = Meter()
        self.measuring = Measuring(self.problem, self.settings, self.generator, self.meter)
        with self.meter.part("gradient"):
            slope = self.measuring.gradient(batch)
        with self.meter.part("curvature"):
            curved = self.measuring.curvature(batch, curvature_batch, self.memory.widening)
            spent = self.preconditioner.update(curved.linearization, self.generator)
            self.meter.other(spent, curved.characters)
        quadratic = Quadratic(
            curved.linearization, slope.gradient, self.memory.damping.terms(), self.preconditioner
        )
        trust = self._trust(batch, slope, curved)
        with self.meter.part("conjugate gradient"):
            run = self._conjugate_gradient(quadratic, trust, curved)
        with self.meter.part("step length"):
            x, q = self._chosen(run, curved)
            x = self._corrected(x, slope, batch)
            found, full = self._length(x, slope, batch)
        with self.meter.part("adaptation"):
            measured = self._measured(trust, run, x, q, full)
        self.meter.products("conjugate gradient", quadratic.products, curved.characters)
        if found.improved:
            self.problem.write(self.measuring.origin + found.step * x)
        memory, recovery = self._remembered(run, found, measured, slope)
        report = self._report(memory, slope, curved, run, found, measured, q)
        return memory, replace(report, recovery=recovery)

    def _trust(self, batch: Batch, slope: Slope, curved: Curved) -> Trust:
        """Where f is measured when the quadratic is judged."""
        ratio = self.settings.ratio
        if ratio == "gradient":
            rounding = rounding_of(slope.loss, self.measuring.origin.dtype)
            return Trust(lambda x: self.measuring.loss(x, batch), slope.loss, rounding)
        rounding = rounding_of(curved.loss, self.measuring.origin.dtype)
        tilt = None
        if ratio == "corrected":
            tilt = slope.gradient - curved.linearization.gradient()
            self.meter.slope(curved.characters)
        return Trust(lambda x: self.measuring.loss(x, curved.batch), curved.loss, rounding, tilt)

    def _conjugate_gradient(self, quadratic: Quadratic, trust: Trust, curved: Curved) -> Run:
        damping, cg = self.memory.damping, self.settings.cg
        search = None
        line_search = part_of(damping, LineSearch)
        if line_search is not None:
            search = DirectionSearch(
                lambda x: self.measuring.loss(x, curved.batch),
                curved.loss,
                line_search,
                self.measuring.origin,
            )
        wanted = bool(getattr(self.preconditioner, "observes_cg", self.preconditioner.kind == "krylov"))
        descent = Descent(quadratic, trust, damping, self.settings, search, keep_directions=wanted)
        last = self.memory.last
        usable = last is not None and last.shape == self.measuring.origin.shape and cg.warm_start > 0
        start = cg.warm_start * last if usable and last is not None else None
        number = self.memory.step + 1
        run = descent.run(
            start, lambda i, q, seconds: self.notify(Tick(number, i, cg.iterations, q, seconds))
        )
        if wanted:
            self.preconditioner.observe_cg(run.directions, run.products)
        return run

    def _chosen(self, run: Run, curved: Curved) -> tuple[Tensor, float]:
        """The last iterate, or the best on the curvature batch of those kept at geometric intervals."""
        if not run.kept or part_of(self.memory.damping, LineSearch) is not None:
            return run.x_f, run.q
        return best_kept(run.kept, (run.x_f, run.q), lambda x: self.measuring.loss(x, curved.batch))

    def _corrected(self, x: Tensor, slope: Slope, batch: Batch) -> Tensor:
        """Two batches: CG's own batch makes its directions look too good, so another one says how far to
        go.
        """
        if not self.settings.curvature.correction:
            return x
        second = self.measuring.linearized(self.measuring.subset(batch, self.memory.widening))
        terms = self.memory.damping.terms()
        quadratic = Quadratic(second.linearization, slope.gradient, terms, self.preconditioner)
        curvature = float(dot(x, quadratic.multiply(x)))
        self.meter.products("step length", 1, second.characters)
        alpha = -float(dot(x, slope.gradient)) / curvature if curvature > 0 else 1.0
        return min(alpha, 2.0) * x if alpha > 0 else x

    def _length(self, x: Tensor, slope: Slope, batch: Batch) -> tuple[Found, float]:
        """The step length on the gradient batch, and the loss at the full step."""
        if not math.isfinite(slope.loss) or not bool(x.any()):
            return Found(0.0, slope.loss, 0), slope.loss
        seen: dict[float, float] = {}

        def loss(step: float) -> float:
            seen[step] = self.measuring.loss(step * x, batch)
            return seen[step]

        final = self.settings.final
        if final.rule == "minimum":
            found = backtrack(loss, slope.loss, final.decay, final.decays)
        else:
            along = float(dot(slope.gradient, x))
            found = first_decrease(loss, slope.loss, along, final.sufficient, final.decay, final.decays)
        return found, seen[1.0]

    def _measured(self, trust: Trust, run: Run, x: Tensor, q: float, full: float) -> Measured | None:
        """p at the end of the run."""
        if run.iterations == 0:
            return None
        if self.settings.ratio == "gradient":
            return trust.judge(full, x, q)
        if run.measured is not None and run.measured_at == run.iterations and q == run.q:
            return run.measured
        at = run.x_q if part_of(self.memory.damping, LineSearch) is not None else x
        return trust.measure(at, q)

    def _remembered(
        self, run: Run, found: Found, measured: Measured | None, slope: Slope
    ) -> tuple[Memory, str | None]:
        """Damping, warm start and counters for the next step; refused and empty steps recover here."""
        memory = self.memory
        damping = run.damping
        if measured is not None:
            evidence = Evidence(measured.p, measured.promise, last=True, first=run.measured is None)
            damping = damping.adapted(evidence, memory.damping)
        if not found.improved and not self._idle(run, slope):
            absurd = measured is not None and measured.promise > 1
            damping = damping if absurd else memory.damping
            for _ in range(memory.failures + 1):  # a damping that is far too small is not to take many steps
                damping = damping.grown()
        counted = replace(
            memory,
            damping=damping,
            last=found.step * run.x_q if found.improved else None,
            step=memory.step + 1,
            seconds=memory.seconds + self.meter.seconds,
            work=memory.work + self.meter.work,
            characters=memory.characters + slope.characters,
        )
        if self._idle(run, slope):
            return counted, None
        gain = (slope.loss - found.loss) / abs(slope.loss) if slope.loss else 0.0
        return recovered(counted, found.step, gain, self.settings.recovery)

    def _idle(self, run: Run, slope: Slope) -> bool:
        """Whether there was nothing to minimise: no slope, so no step, which is not a failure."""
        return run.iterations == 0 and not bool(slope.gradient.any())

    def _report(
        self,
        memory: Memory,
        slope: Slope,
        curved: Curved,
        run: Run,
        found: Found,
        measured: Measured | None,
        q: float,
    ) -> StepReport:
        used = self.memory.damping
        structural, metric = part_of(used, Structural), part_of(used, Metric)
        terms = used.terms()
        epoch = self.settings.epoch_characters
        return StepReport(
            step=memory.step,
            seconds=memory.seconds,
            work=memory.work / epoch if epoch else None,
            characters=memory.characters,
            loss_before=slope.loss,
            loss_after=found.loss if found.improved else slope.loss,
            mu=None if structural is None else structural.mu,
            lambda_=terms.tikhonov if terms.tikhonov else None,
            p=None if measured is None else measured.p,
            cg_iterations=run.iterations,
            cg_reason=run.reason,
            step_size=found.step,
            accepted=found.improved,
            products=sum(self.meter.products_of.values()),
            work_characters=memory.work,
            step_seconds=memory.seconds - self.memory.seconds,
            step_work_characters=self.meter.work,
            kappa=None if metric is None else metric.kappa,
            q=q,
            gradient_norm=float(norm(slope.gradient)),
            gradient_noise=slope.noise,
            gradient_scored=slope.scored,
            curvature_scored=curved.scored,
            losses=self.meter.losses,
            seconds_of=self.meter.seconds_of,
            products_of=self.meter.products_of,
            refused=None if found.improved else self._why(run, slope),
            trace=tuple(run.trace) if self.settings.trace else None,
        )

    def _why(self, run: Run, slope: Slope) -> str:
        if not math.isfinite(slope.loss) or not math.isfinite(float(norm(slope.gradient))):
            return NOT_FINITE
        return NOTHING_TO_DO if self._idle(run, slope) else NOT_LOWER
