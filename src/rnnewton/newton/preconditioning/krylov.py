"""L-BFGS over the directions of the last CG run (Morales & Nocedal 2000; Sainath et al. 2013): costs no
product of its own.

p: number of parameters, m: pairs kept. Directions and products are (p,).

CG has already multiplied its directions by the damped matrix A, so every (d, A d) is an exact curvature
pair. The two-loop recursion does not change when a pair is scaled, so the step lengths along d are not
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.preconditioning.base import State, check_kind
from rnnewton.newton.problem import Linearization


class Krylov:
    kind = "krylov"
    has_metric = False

    def __init__(self, pairs: int = 20) -> None:
        if pairs < 1:
            raise ValueError(f"pairs is {pairs}; it must be at least 1, the number of CG directions to keep")
        self.pairs = pairs
        self._directions: list[Tensor] = []
        self._products: list[Tensor] = []

    def update(self, linearization: Linearization, generator: torch.Generator | None) -> float:
        return 0.0

    def observe_cg(self, directions: Sequence[Tensor], products: Sequence[Tensor]) -> None:
        """Keeps `pairs` of them, evenly spread over the run, and none along which the curvature vanishes."""
        kept = [(d, y) for d, y in zip(directions, products, strict=True) if _curved(d, y)]
        if not kept:
            return  # an empty run says nothing new: the old pairs stay
        count = min(self.pairs, len(kept))
        chosen = [kept[(i * len(kept)) // count] for i in range(count)]
        self._directions = [d.detach().clone() for d, _ in chosen]
        self._products = [y.detach().clone() for _, y in chosen]

    def solve(self, residual: Tensor, damping: float, kappa: float = 0.0) -> Tensor:
        """The two-loop recursion. The pairs hold the damping of their own run, so that of this one is not
        added again."""
        if not self._directions:
            return residual
        r = residual.clone()
        weights = [
            torch.dot(d, y).reciprocal() for d, y in zip(self._directions, self._products, strict=True)
        ]
        alphas: list[Tensor] = []
        for d, y, rho in zip(
            reversed(self._directions), reversed(self._products), reversed(weights), strict=True
        ):
            alpha = rho * torch.dot(d, r)
            r = r - alpha * y
            alphas.append(alpha)
        d, y = self._directions[-1], self._products[-1]
        r = r * (torch.dot(d, y) / torch.dot(y, y))
        for d, y, rho, alpha in zip(self._directions, self._products, weights, reversed(alphas), strict=True):
            r = r + (alpha - rho * torch.dot(y, r)) * d
        return r

    def metric(self, vector: Tensor) -> Tensor:
        return vector

    def mean(self) -> float:
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "directions": [d.clone() for d in self._directions],
            "products": [y.clone() for y in self._products],
        }

    def load_state_dict(self, state: State) -> None:
        check_kind(state, self.kind)
        self._directions = [d.clone() for d in state["directions"]]
        self._products = [y.clone() for y in state["products"]]


def _curved(direction: Tensor, product: Tensor) -> bool:
    """Positive and finite curvature, well above rounding: what BFGS needs to stay positive definite."""
    curvature = torch.dot(direction, product)
    bound = torch.finfo(direction.dtype).eps * direction.norm() * product.norm()
    return bool(torch.isfinite(curvature) & (curvature > bound))
