"""What conjugate gradient needs of a preconditioner, and the one that does nothing.

A preconditioner is told about every curvature batch once per outer step (`update`), solves with an
approximation M of the curvature as often as CG asks (`solve`), and may lend M to the damping as its metric
(`metric`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rnnewton.newton.problem import Linearization

State = Mapping[str, Any]  # nested dicts and lists of tensors and JSON scalars: it is never pickled


@runtime_checkable
class Preconditioner(Protocol):
    kind: str
    has_metric: bool  # whether M approximates the curvature itself, so that kappa * M is a sensible damping

    def update(self, linearization: Linearization, generator: torch.Generator | None) -> float:
        """Learn from one curvature batch, once per outer step. Returns what that cost, in gradients per
        character."""
        ...

    def solve(self, residual: Tensor, damping: float, kappa: float = 0.0) -> Tensor:
        """((1 + kappa) M + damping)⁻¹ residual: the inverse of the system with M in the place of the
        curvature."""
        ...

    def metric(self, vector: Tensor) -> Tensor:
        """M vector."""
        ...

    def mean(self) -> float:
        """The mean of M's eigenvalues: what `damping` is to be compared with."""
        ...

    def observe_cg(self, directions: Sequence[Tensor], products: Sequence[Tensor]) -> None:
        """The last CG run's directions d and products A d, A being the damped matrix of that run."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: State) -> None: ...


def check_kind(state: State, kind: str) -> None:
    """A state of another preconditioner is the caller's error, said before anything is changed."""
    if state.get("kind") != kind:
        raise ValueError(
            f"the saved state is of the preconditioner {state.get('kind')!r}, this one is {kind!r}: "
            f"build the optimiser with the preconditioner that it was saved with"
        )
