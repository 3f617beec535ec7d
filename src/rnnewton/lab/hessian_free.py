"""Hessian-free learning of a text: batches drawn, the optimiser built from settings, one step a line of
metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from rnnewton.lab.learner import Task
from rnnewton.lab.settings import OptimizerSettings
from rnnewton.lab.values import characters_of
from rnnewton.newton.batches import BatchSchedule, EpochSampler, Sizes
from rnnewton.newton.damping import Damping, LineSearch, Metric, Structural, Tikhonov
from rnnewton.newton.descent import Tick
from rnnewton.newton.optimizer import HessianFree
from rnnewton.newton.preconditioning import Identity, Kronecker, Preconditioner, preconditioner_of
from rnnewton.newton.report import StepReport
from rnnewton.newton.settings import (
    ConjugateGradientSettings,
    CurvatureSettings,
    FinalStepSettings,
    HessianFreeSettings,
)
from rnnewton.text.blocks import Consecutive, Sequences

FEW_ITERATIONS = 30
WORK_SHARE = 0.01  # of the work so far: a growing gradient batch
LEAST_CURVATURE = 10_000  # characters: smaller curvature batches were unstable with everything tried


class HessianFreeLearner:
    """One step is one outer step; interrupted in the middle of it, all is as it was before."""

    def __init__(self, task: Task, subscriber: Callable[[Tick], None]) -> None:
        self._task = task
        self._regularized = task.regularized()
        self._sequences = Sequences(task.training, task.length)
        count = len(self._sequences)
        consecutive = task.settings.sequences.order == "consecutive"
        self._order = Consecutive(count) if consecutive else EpochSampler(count, task.settings.model.seed)
        self._schedule = schedule_of(task)
        self._optimizer = HessianFree(
            self._regularized or task.model,
            damping=damping_of(task.settings.optimizer),
            preconditioner=_preconditioner(task),
            settings=_settings(task, self._schedule),
            seed=task.settings.model.seed,
        )
        self._optimizer.subscribe(subscriber)
        self._work = 0.0

    def step(self) -> StepReport:
        before = self._batches_state()
        try:
            sizes = self._schedule.at(self._work)
            number = min(max(1, round(sizes.gradient / self._task.length)), len(self._sequences))
            batch = self._sequences.block(np.asarray(self._order.take(number)), self._task.device)
            if self._regularized is not None:
                self._regularized.redraw()
            curvature = CurvatureSettings(fraction=sizes.curvature / sizes.gradient)
            self._optimizer.settings = replace(self._optimizer.settings, curvature=curvature)
            report = self._optimizer.step(batch, iterations=sizes.iterations)
        except BaseException:  # the optimiser has undone its own part
            self._load_batches(before)
            raise
        self._work = report.work or 0.0
        return report

    @property
    def weights(self) -> Tensor:
        return self._optimizer.problem.read()

    @property
    def average(self) -> Tensor | None:
        return self._optimizer.average

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), **self._batches_state()}

    def load_state_dict(self, state: dict[str, Any], weights: Tensor) -> None:
        self._optimizer.problem.write(weights)
        self._optimizer.load_state_dict(state["optimizer"])
        self._load_batches(state)

    def _batches_state(self) -> dict[str, Any]:
        regularized = None if self._regularized is None else self._regularized.state_dict()
        return {"order": self._order.state_dict(), "regularized": regularized, "work": self._work}

    def _load_batches(self, state: dict[str, Any]) -> None:
        if self._regularized is not None:
            self._regularized.load_state_dict(state["regularized"])
        self._order.load_state_dict(state["order"])
        self._work = float(state["work"])


def schedule_of(task: Task) -> BatchSchedule:
    """Sizes of the batches, in characters that are there."""
    settings, optimizer, total = task.settings.sequences, task.settings.optimizer, len(task.training) - 1
    if settings.gradient_batch is None or settings.curvature_batch is None or optimizer.cg_iterations is None:
        raise ValueError("the batches are not chosen yet: see choices.py")
    first = characters_of(settings.gradient_batch, total)
    largest = max(first, characters_of(settings.final_gradient_batch or settings.gradient_batch, total))
    curvature = characters_of(settings.curvature_batch, first)
    last = optimizer.cg_iterations
    if largest == first:
        return BatchSchedule(Sizes(first, curvature, last))
    # As the batch grows ten times, the run of CG that it bears grows from 3 to 8 iterations.
    iterations = max(1, round(last * (first / largest) ** 0.43))
    return BatchSchedule(
        Sizes(first, curvature, iterations),
        growth="proportional" if settings.growth_work is None else "geometric",
        factor=settings.growth,
        every=settings.growth_work or math.inf,
        per_work=WORK_SHARE * total,
        largest=largest,
        last_iterations=last,
        least_curvature=LEAST_CURVATURE,
    )


def damping_of(settings: OptimizerSettings) -> Damping:
    """structural:0.1+tikhonov:0.01 as a sum of dampings; the parts' own defaults where no number is given."""
    text = settings.damping
    if text is None:
        raise ValueError("damping is not chosen yet: see choices.py")
    total: Damping | None = None
    for part in text.split("+"):
        name, _, number = part.strip().partition(":")
        each = _damping_part(name, float(number) if number else None, settings)
        total = each if total is None else total + each
    assert total is not None
    return total


def _damping_part(name: str, number: float | None, settings: OptimizerSettings) -> Damping:
    if name == "structural":
        return Structural(0.1 if number is None else number, form=settings.form, tap=settings.tap)
    if name == "tikhonov":
        return Tikhonov(0.01 if number is None else number)
    if name == "metric":
        return Metric() if number is None else Metric(number)
    return LineSearch() if number is None else LineSearch(number)


def _preconditioner(task: Task) -> Preconditioner:
    name = task.settings.optimizer.preconditioner or "none"
    if name == "none":
        return Identity()
    if name == "kronecker":
        return Kronecker(symbol_frequencies=task.frequencies)
    return preconditioner_of({"lbfgs": "krylov"}.get(name, name))


def _settings(task: Task, schedule: BatchSchedule) -> HessianFreeSettings:
    """The optimiser's own settings. Few iterations are the small-batch form, whose final step takes the
    first decrease.
    """
    optimizer, sizes = task.settings.optimizer, schedule.sizes
    if optimizer.warm_start is None:
        raise ValueError("the warm start is not chosen yet: see choices.py")
    few = sizes.iterations <= FEW_ITERATIONS
    return HessianFreeSettings(
        cg=ConjugateGradientSettings(iterations=sizes.iterations, warm_start=optimizer.warm_start),
        curvature=CurvatureSettings(fraction=sizes.curvature / sizes.gradient),
        final=FinalStepSettings(rule="armijo", decays=5) if few else FinalStepSettings(),
        averaging=optimizer.average or None,
        passes=task.passes(),
        epoch_characters=max(len(task.training) - 1, 1),
    )
