"""No preconditioning: M = I, and CG sees the residual as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.preconditioning.base import State, check_kind
from rnnewton.newton.problem import Linearization


class Identity:
    kind = "none"
    has_metric = False

    def update(self, linearization: Linearization, generator: torch.Generator | None) -> float:
        return 0.0

    def solve(self, residual: Tensor, damping: float, kappa: float = 0.0) -> Tensor:
        return residual

    def metric(self, vector: Tensor) -> Tensor:
        return vector

    def mean(self) -> float:
        return 1.0

    def observe_cg(self, directions: Sequence[Tensor], products: Sequence[Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def load_state_dict(self, state: State) -> None:
        check_kind(state, self.kind)
