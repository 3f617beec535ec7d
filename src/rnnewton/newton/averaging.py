"""An exponential average of the iterates, without the bias of its start.

p: number of parameters. Weights are (p,).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Average:
    """Step k of t weighs decay^(t − k), divided by the sum of the weights."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.value: Tensor | None = None
        self._mass = 0.0  # sum of the weights

    def add(self, weights: Tensor) -> None:
        if self.value is None or self.value.shape != weights.shape:  # the first, or the network has grown
            self.value = weights.clone()
            self._mass = 1.0
            return
        self._mass = self.decay * self._mass + 1.0
        self.value = torch.lerp(self.value, weights, 1.0 / self._mass)

    def state_dict(self) -> dict[str, Any]:
        return {"mass": self._mass, "value": None if self.value is None else self.value.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        value = state["value"]
        self.value = None if value is None else value.clone()
        self._mass = float(state["mass"])
