"""The memory cell that LSTM and mLSTM share, from the gates' pre-activations on (thesis, 2.2, appendix).

    H_state(t) = phi ⊙ H_state(t−1) + omega ⊙ H_in(t)      omega, phi, rho: input, forget and output gate
    zeta(t)    = H_state(t) ⊙ rho
    H_out(t)   = tanh(zeta(t))

The original cell has no phi: its internal state has a self-recurrent weight of 1.
Legend: B sequences, h units, G = 4 gates (h, input, forget, output), 3 without forget; tensors are (B, h).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.cells.base import After, HiddenCell, Moment, tanh
from rnnewton.recurrent.cells.rnn import slope


class Gates(NamedTuple):
    """What the derivatives need of a step: the squashed gates."""

    h_in: Tensor
    omega: Tensor
    phi: Tensor | None
    rho: Tensor


def remember(
    gates: Tensor, before: HiddenCell, forgets: bool, squash_input: bool
) -> tuple[HiddenCell, Gates]:
    """The state from the pre-activations, gates (B, G·h)."""
    h_in, *soft = gates.chunk(4 if forgets else 3, dim=-1)
    omega, *middle, rho = (torch.sigmoid(gate) for gate in soft)
    phi = middle[0] if middle else None
    h_in = tanh(h_in) if squash_input else h_in
    cell = (before.cell if phi is None else phi * before.cell) + omega * h_in
    return HiddenCell(tanh(cell * rho), cell), Gates(h_in, omega, phi, rho)


def remember_tangent(
    gates: Tensor, before: HiddenCell, moment: Moment, kept: Any, squash_input: bool
) -> HiddenCell:
    """R(state) from R(gates) (B, G·h) and R(state before)."""
    h_in, omega, phi, rho = kept.h_in, kept.omega, kept.phi, kept.rho
    r_h_in, r_omega, *r_middle, r_rho = gates.chunk(3 if phi is None else 4, dim=-1)
    if squash_input:
        r_h_in = r_h_in * slope(h_in)
    r_cell = omega * r_h_in + h_in * soft_slope(omega) * r_omega
    if phi is None:
        r_cell = r_cell + before.cell
    else:
        r_cell = r_cell + moment.before.cell * soft_slope(phi) * r_middle[0] + phi * before.cell
    r_zeta = r_cell * rho + moment.after.cell * soft_slope(rho) * r_rho
    return HiddenCell(r_zeta * slope(moment.after.out), r_cell)


def remember_adjoint(after: After, moment: Moment, kept: Any, squash_input: bool) -> tuple[Tensor, Tensor]:
    """d_gates (B, G·h) and d_H_state(t−1)."""
    h_in, omega, phi, rho = kept.h_in, kept.omega, kept.phi, kept.rho
    d_zeta = after.out * slope(moment.after.out)
    if after.zeta is not None:
        d_zeta = d_zeta + after.zeta
    d_rho = d_zeta * moment.after.cell * soft_slope(rho)
    d_cell = d_zeta * rho
    if after.cell is not None:
        d_cell = d_cell + after.cell
    d_omega = d_cell * h_in * soft_slope(omega)
    d_h_in = d_cell * omega
    if squash_input:
        d_h_in = d_h_in * slope(h_in)
    if phi is None:
        return torch.cat((d_h_in, d_omega, d_rho), dim=-1), d_cell
    d_phi = d_cell * moment.before.cell * soft_slope(phi)
    return torch.cat((d_h_in, d_omega, d_phi, d_rho), dim=-1), d_cell * phi


def soft_slope(gate: Tensor) -> Tensor:
    """dσ/dx from σ's value: σ ⊙ (1 − σ)."""
    return gate * (1 - gate)
