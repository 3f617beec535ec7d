"""Martens' diagonal preconditioner (2010): mean squared gradients of single sequences, damped, to the power
0.75.

p: number of parameters; T, B: time steps, sequences; n: scored positions. His own note says that it does
not help recurrent nets, whose ill-conditioning is not along the axes; it is here to be measured against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.preconditioning.base import State, check_kind
from rnnewton.newton.preconditioning.moments import sequence_elements, sequence_squares, slabs
from rnnewton.newton.problem import Linearization, WeightTraffic

ADJOINT_AND_SQUARES = 2 / 3 + 1 / 3  # gradients per character


class Diagonal:
    kind = "diagonal"
    has_metric = False

    def __init__(self, power: float = 0.75) -> None:
        if not 0 < power <= 1:
            raise ValueError(f"power is {power}; it must lie in (0, 1], and Martens' is 0.75")
        self.power = power
        self._starts: list[int] = []
        self._blocks: list[Tensor] = []  # (rows * columns,) each, where traffic was seen
        self._mean = 0.0

    def update(self, linearization: Linearization, generator: torch.Generator | None) -> float:
        """Σ_b g_b² / n with the true targets. Weights whose traffic is not seen get the mean of the
        others."""
        blocks: dict[int, Tensor] = {}
        for chunk in linearization.traffic(None):
            for weight in chunk:
                squares = _squares(weight)
                squares = (squares.mT if weight.transposed else squares).flatten()
                known = blocks.get(weight.start)
                blocks[weight.start] = squares if known is None else known + squares
        if blocks:
            mean = float(torch.cat(list(blocks.values())).mean()) / linearization.count
            if math.isfinite(mean):
                self._starts, self._mean = list(blocks), mean
                self._blocks = [block / linearization.count for block in blocks.values()]
        return ADJOINT_AND_SQUARES

    def solve(self, residual: Tensor, damping: float, kappa: float = 0.0) -> Tensor:
        if not self._blocks:
            return residual
        tiny = torch.finfo(residual.dtype).tiny
        damped = ((1 + kappa) * self._diagonal(residual) + damping) ** self.power
        return residual / damped.clamp_min(tiny)

    def metric(self, vector: Tensor) -> Tensor:
        return self._diagonal(vector) * vector if self._blocks else vector

    def mean(self) -> float:
        return self._mean if self._blocks else 1.0

    def _diagonal(self, like: Tensor) -> Tensor:
        whole = like.new_full(like.shape, self._mean)
        for start, block in zip(self._starts, self._blocks, strict=True):
            whole[start : start + block.numel()] = block
        return whole

    def observe_cg(self, directions: Sequence[Tensor], products: Sequence[Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        blocks = [block.clone() for block in self._blocks]
        return {"kind": self.kind, "starts": list(self._starts), "blocks": blocks, "mean": self._mean}

    def load_state_dict(self, state: State) -> None:
        check_kind(state, self.kind)
        self._starts, self._mean = list(state["starts"]), float(state["mean"])
        self._blocks = [block.clone() for block in state["blocks"]]


def _squares(weight: WeightTraffic) -> Tensor:
    """Σ over the chunk's sequences of squared gradients, (rows, columns)."""
    total = weight.deltas.new_zeros(weight.rows, weight.columns)
    for slab in slabs(weight.deltas, sequence_elements(weight)):
        total += sequence_squares(weight.deltas[:, slab], weight.inputs[:, slab], None, None, weight.columns)
    return total
