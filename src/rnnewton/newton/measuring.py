"""What an outer step measures: f and its gradient on n_j, the linearised curvature batch n_c, other losses.

p: number of parameters. θ (`origin`), gradients and x: (p,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rnnewton.newton.chunks import Batch
from rnnewton.newton.problem import Linearization, Problem, loss_at
from rnnewton.newton.report import Meter
from rnnewton.newton.settings import HessianFreeSettings
from rnnewton.newton.vector import norm

_DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Slope:
    """The loss and its gradient on the gradient batch."""

    loss: float
    gradient: Tensor
    scored: int
    characters: int
    noise: float | None = None  # estimated variance of the gradient over its squared norm


@dataclass(frozen=True)
class Curved:
    """The curvature batch, linearised."""

    batch: Batch
    linearization: Linearization
    loss: float
    scored: int
    characters: int


class Measuring:
    """Everything is measured at one θ, and its cost goes to one meter."""

    def __init__(
        self, problem: Problem, settings: HessianFreeSettings, generator: torch.Generator, meter: Meter
    ) -> None:
        self.origin = problem.read()
        self.meter = meter
        self._problem = problem
        self._settings = settings
        self._generator = generator

    def gradient(self, batch: Batch) -> Slope:
        """f and ∇f on n_j; in two halves when the noise is asked for, which costs no more."""
        characters = self._problem.characters(batch)
        self.meter.gradient(characters)
        halves = getattr(self._problem, "halves", None) if self._settings.measure_noise else None
        pair = None if halves is None else halves(batch, self._generator)
        if pair is None:
            return self._slope(batch, characters)
        one, two = (self._slope(half, characters) for half in pair)
        total = one.scored + two.scored
        share = one.scored / total
        gradient = share * one.gradient + (1 - share) * two.gradient
        difference = norm(one.gradient - two.gradient)
        noise = float(share * (1 - share) * difference**2 / norm(gradient) ** 2)
        return Slope(share * one.loss + (1 - share) * two.loss, gradient, total, characters, noise)

    def curvature(self, batch: Batch, given: Batch | None, widening: float) -> Curved:
        """n_c: the caller's, or a share of n_j drawn here; more of n_j while recovering."""
        if given is None:
            chosen = self.subset(batch, widening)
        elif widening > 1:
            share = self._problem.scored(given) / max(self._problem.scored(batch), 1)
            chosen = self._share(batch, share * widening) if share < 1 else given
        else:
            chosen = given
        return self.linearized(chosen)

    def linearized(self, batch: Batch) -> Curved:
        characters = self._problem.characters(batch)
        self.meter.forward(characters)
        point = self._problem.linearize(batch)
        return Curved(batch, point, self._loss_here(point, batch), point.count, characters)

    def subset(self, batch: Batch, widening: float) -> Batch:
        """A share of the gradient batch, drawn anew."""
        return self._share(batch, self._settings.curvature.fraction * widening)

    def loss(self, x: Tensor, batch: Batch) -> float:
        """f(θ + x)."""
        self.meter.loss(self._problem.characters(batch))
        return loss_at(self._problem, self.origin + x, batch)

    def _share(self, batch: Batch, fraction: float) -> Batch:
        return batch if fraction >= 1 else self._problem.subset(batch, fraction, self._generator)

    def _slope(self, batch: Batch, characters: int) -> Slope:
        point = self._problem.linearize(batch)
        return Slope(self._loss_here(point, batch), point.gradient(), point.count, characters)

    def _loss_here(self, point: Linearization, batch: Batch) -> float:
        """f(θ): the linearisation's own, unless its passes round more coarsely than a loss does."""
        precision = self._settings.passes.precision
        if precision is None or _DTYPES.get(precision) == self.origin.dtype:
            return float(point.loss)
        self.meter.loss(self._problem.characters(batch))
        return self._problem.loss(batch)
