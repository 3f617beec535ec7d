"""How far the quadratic can be trusted: p = (f(x) − f(0)) / (q(x) − q(0)), with f and q of stated examples.

p: number of parameters. x and tilt are (p,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rnnewton.newton.vector import dot

_BELIEVED = 10.0  # |q| must be so many times the rounding of f before p means anything


@dataclass(frozen=True)
class Measured:
    f: float  # f(x) − f(0)
    p: float | None  # None where rounding hides it; −inf where f is not finite
    promise: float  # −q over the loss before; 0 where the loss is no bound


class Trust:
    def __init__(
        self,
        loss: Callable[[Tensor], float],
        before: float,
        rounding: float,
        tilt: Tensor | None = None,
    ) -> None:
        """`tilt` is g − g_c: f̃(x) = f_c(θ + x) + tiltᵀx has the slope of the gradient batch (Tatzel et al.
        2025).
        """
        self._loss = loss
        self._before = before
        self._rounding = rounding
        self._tilt = tilt

    def measure(self, x: Tensor, q: float) -> Measured:
        return self.judge(self._loss(x), x, q)

    def judge(self, loss: float, x: Tensor, q: float) -> Measured:
        """The same with f(θ + x) known already."""
        f = loss - self._before
        if self._tilt is not None:
            f += float(dot(self._tilt, x))
        promise = -q / self._before if self._before > 0 else 0.0
        if not math.isfinite(f):
            return Measured(math.inf, -math.inf, promise)
        if not q < 0 or -q < _BELIEVED * self._rounding:
            return Measured(f, None, promise)
        return Measured(f, f / q, promise)


def rounding_of(loss: float, dtype: torch.dtype) -> float:
    """How far a loss that is summed in float64 can be off, its terms and the weights being rounded."""
    return abs(loss) * torch.finfo(dtype).eps
