"""How far to go: backtracking along the final step and along each direction of line-search damping.

p: number of parameters. x and directions are (p,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rnnewton.newton.damping import LineSearch

Loss = Callable[[Tensor], float]  # the loss at θ + x


@dataclass(frozen=True)
class Found:
    step: float  # 0 where nothing below the loss before was found
    loss: float
    evaluations: int

    @property
    def improved(self) -> bool:
        return self.step > 0


def backtrack(loss: Callable[[float], float], before: float, decay: float, decays: int) -> Found:
    """The thesis's search: shorten the step while that lowers the loss, and as long as it is not below
    `before`.
    """
    step, value = 1.0, _comparable(loss(1.0))
    evaluations = 1
    for _ in range(decays):
        tried = _comparable(loss(decay * step))
        evaluations += 1
        if tried < value or not value < before:
            step, value = decay * step, tried
        else:
            break
    return Found(step, value, evaluations) if value < before else Found(0.0, before, evaluations)


def first_decrease(
    loss: Callable[[float], float], before: float, slope: float, sufficient: float, decay: float, decays: int
) -> Found:
    """Armijo's search: the longest step tried that wins a share of what the slope promises.

    Every try shortens the step more than the one before (0.8, 0.8², 0.8³ … of it): a step that is too long by
    orders of magnitude is found out in a few losses.
    """
    step, shorter = 1.0, decay
    for tries in range(decays + 1):
        value = _comparable(loss(step))
        if value < before and value <= before + sufficient * step * slope:
            return Found(step, value, tries + 1)
        step *= shorter
        shorter *= decay
    return Found(0.0, before, decays + 1)


class DirectionSearch:
    """Line-search damping's second path: x_f follows CG's directions only as far as the network's loss
    falls.
    """

    def __init__(self, loss: Loss, before: float, settings: LineSearch, origin: Tensor) -> None:
        self._loss = loss
        self._settings = settings
        self.x = torch.zeros_like(origin)
        self.value = before
        self.evaluations = 0

    def follow(self, update: Tensor) -> bool:
        """Backtracks along αS. False: a stalled direction, which leaves x_f as it was."""
        found = backtrack(
            lambda step: self._loss(self.x + step * update),
            self.value,
            self._settings.decay,
            self._settings.decays,
        )
        self.evaluations += found.evaluations
        if found.improved:
            self.x = self.x + found.step * update
            self.value = found.loss
        return found.improved


def _comparable(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
