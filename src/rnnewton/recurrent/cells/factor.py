"""The multiplicative intermediate state M(t) = chi ⊙ xi, chi = W_mi I(t), xi = W_mh H(t−1) (thesis, 2.4).

It stands where H(t−1) stands in a cell that is not factored.
Legend: B sequences, h units; all tensors (B, h).
"""

from typing import Any, NamedTuple

from torch import Tensor

from rnnewton.recurrent.cells.base import Drive, State, Weights, add_product


class Factor(NamedTuple):
    chi: Tensor
    xi: Tensor
    m: Tensor


def factor(weights: Weights, drive: Drive, before: State) -> Factor:
    assert weights.xi is not None and drive.chi is not None
    xi = weights.xi.carry(before.out) if drive.xi is None else weights.xi.onto(drive.xi, before.out)
    return Factor(drive.chi, xi, drive.chi * xi)


def factor_tangent(weights: Weights, kept: Any, drive: Drive, before: State) -> Tensor:
    """R(M) = R(chi) ⊙ xi + chi ⊙ R(xi), with R(W_mh) H(t−1) already in the drive."""
    assert weights.xi is not None and drive.xi is not None and drive.chi is not None
    r_xi = weights.xi.onto(drive.xi, before.out)
    return add_product(drive.chi * kept.xi, kept.chi, r_xi)


def factor_adjoint(weights: Weights, kept: Any, d_gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d_chi, d_xi and d_H(t−1)."""
    assert weights.xi is not None
    d_m = weights.recurrent.back(d_gates)
    d_chi = d_m * kept.xi
    d_xi = d_m * kept.chi
    return d_chi, d_xi, weights.xi.back(d_xi)
