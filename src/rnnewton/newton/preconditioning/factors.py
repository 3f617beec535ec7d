"""One side of a weight's Kronecker factorisation: the mean of x xᵀ over positions, kept over outer steps,
and its eigenbasis.

f: features of that side (rows for the deltas, columns for the inputs; symbols for a look-up).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.preconditioning.base import State


class Factor:
    """Mean x xᵀ, (f, f), and the basis that made it diagonal at the last refresh. The first batch is taken
    as it is."""

    def __init__(self) -> None:
        self.average: Tensor | None = None  # (f, f)
        self.basis: Tensor | None = None  # (f, f), columns are eigenvectors

    def blended(self, mean: Tensor, decay: float) -> Tensor:
        return mean if self.average is None else decay * self.average + (1 - decay) * mean

    def refresh(self, matrix: Tensor) -> Tensor | None:
        """Takes the eigenbasis of `matrix`; returns basis_newᵀ basis_old, None where there was none or
        nothing changed."""
        basis = eigenbasis(matrix)
        if basis is None:
            if self.basis is None:  # the axes themselves are a basis that always works
                self.basis = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
            return None
        turn = None if self.basis is None else basis.mT @ self.basis
        self.basis = basis
        return turn

    def values(self) -> Tensor:
        """(f,): the diagonal of basisᵀ average basis; between refreshes its eigenvalues only nearly."""
        assert self.average is not None and self.basis is not None
        return (self.basis * (self.average @ self.basis)).sum(0).clamp_min(0)

    def state_dict(self) -> dict[str, Any]:
        return {"symbols": 0, "counts": None, "average": copy(self.average), "basis": copy(self.basis)}

    def load_state_dict(self, state: State) -> None:
        self.average, self.basis = copy(state["average"]), copy(state["basis"])


class SymbolFactor:
    """A look-up's side: x xᵀ of a one-hot x is diagonal, and its mean is the symbols' frequencies.

    A batch does not hold every rare symbol; with the batch's own frequencies their rows run away. So the
    frequencies are the text's where the caller knows them, else those of all batches so far with half a
    count given to every symbol.
    """

    def __init__(self, size: int, given: Tensor | None) -> None:
        self.size = size
        self.given = None if given is None else _checked(given, size)
        self.counts: Tensor | None = None  # (f,) float64

    def add(self, counts: Tensor) -> None:
        counts = counts.double()
        self.counts = counts if self.counts is None else self.counts + counts

    def values(self) -> Tensor:
        """(f,) frequencies, float64."""
        if self.given is not None:
            return self.given
        assert self.counts is not None
        smooth = self.counts + 0.5
        return smooth / smooth.sum()

    def state_dict(self) -> dict[str, Any]:
        return {"symbols": self.size, "counts": copy(self.counts), "average": None, "basis": None}

    def load_state_dict(self, state: State) -> None:
        self.counts = copy(state["counts"])


def eigenbasis(matrix: Tensor) -> Tensor | None:
    """Eigenvectors of a symmetric matrix as columns; in float64 where its own precision fails; None where
    both fail."""
    if not bool(torch.isfinite(matrix).all()):
        return None
    symmetric = (matrix + matrix.mT) / 2
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        try:
            vectors = torch.linalg.eigh(symmetric.to(dtype)).eigenvectors
        except RuntimeError:  # torch.linalg.LinAlgError is one
            continue
        basis = vectors.to(matrix.dtype).contiguous()  # row-major: a saved basis multiplies to the same bits
        if bool(torch.isfinite(basis).all()):
            return basis
    return None


def copy(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


def _checked(given: Tensor, size: int) -> Tensor:
    if given.ndim != 1 or len(given) != size:
        raise ValueError(
            f"symbol_frequencies has shape {tuple(given.shape)}, but a look-up weight has {size} symbols: "
            f"give one frequency for each symbol, or None"
        )
    given = given.double()
    if bool((given < 0).any()) or not bool(given.sum() > 0):
        raise ValueError("symbol_frequencies must be non-negative and must not all be zero")
    return given / given.sum()
