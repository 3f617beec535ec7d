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

from rnnewton.recurrent.cells.base import After, HiddenCell, Moment, add_product, tanh, through_tanh


class Gates(NamedTuple):
    """The squashed gates of a step."""

    h_in: Tensor
    omega: Tensor
    phi: Tensor | None
    rho: Tensor


class Slopes(NamedTuple):
    """The derivatives of one step, unit by unit."""

    gates: Tensor  # (B, G·h) of H_state by the inputs of h, omega and phi; of zeta by the input of rho
    phi: Tensor | None  # of H_state(t) by H_state(t−1); None is 1
    rho: Tensor  # of zeta by H_state(t)


def remember(
    gates: Tensor, before: HiddenCell, forgets: bool, squash_input: bool
) -> tuple[HiddenCell, Gates]:
    """The state from the pre-activations, gates (B, G·h)."""
    h_in, *soft = gates.chunk(4 if forgets else 3, dim=-1)
    omega, *middle, rho = (torch.sigmoid(gate) for gate in soft)
    phi = middle[0] if middle else None
    h_in = tanh(h_in) if squash_input else h_in
    cell = add_product(before.cell if phi is None else phi * before.cell, omega, h_in)
    return HiddenCell(tanh(cell * rho), cell), Gates(h_in, omega, phi, rho)


def remember_slopes(before: HiddenCell, after: HiddenCell, gates: Gates, squash_input: bool) -> Slopes:
    h_in, omega, phi, rho = gates
    by_h_in = through_tanh(omega, h_in) if squash_input else omega
    by_omega = h_in * soft_slope(omega)
    by_rho = after.cell * soft_slope(rho)
    if phi is None:
        return Slopes(torch.cat((by_h_in, by_omega, by_rho), dim=-1), None, rho)
    by_phi = before.cell * soft_slope(phi)
    return Slopes(torch.cat((by_h_in, by_omega, by_phi, by_rho), dim=-1), phi, rho)


def remember_tangent(r_gates: Tensor, before: HiddenCell, moment: Moment, slopes: Any) -> HiddenCell:
    """R(state) from R(gates) (B, G·h) and R(state before)."""
    *r_parts, r_zeta = (r_gates * slopes.gates).chunk(3 if slopes.phi is None else 4, dim=-1)
    r_cell = before.cell if slopes.phi is None else slopes.phi * before.cell
    for r_part in r_parts:
        r_cell = r_cell + r_part
    r_zeta = add_product(r_zeta, slopes.rho, r_cell)
    return HiddenCell(through_tanh(r_zeta, moment.after.out), r_cell)


def remember_adjoint(after: After, moment: Moment, slopes: Any) -> tuple[Tensor, Tensor]:
    """d_gates (B, G·h) and d_H_state(t−1)."""
    d_zeta = through_tanh(after.out, moment.after.out)
    if after.zeta is not None:
        d_zeta = d_zeta + after.zeta
    assert after.cell is not None
    d_cell = add_product(after.cell, d_zeta, slopes.rho)
    if slopes.phi is None:
        return torch.cat((d_cell, d_cell, d_zeta), dim=-1) * slopes.gates, d_cell
    d_gates = torch.cat((d_cell, d_cell, d_cell, d_zeta), dim=-1) * slopes.gates
    return d_gates, d_cell * slopes.phi


def soft_slope(gate: Tensor) -> Tensor:
    """dσ/dx from σ's value: σ ⊙ (1 − σ)."""
    return gate * (1 - gate)
