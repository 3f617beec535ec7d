"""Multiplicative LSTM (thesis, chapter 4.4 and appendix): an LSTM whose gates M(t) drives, not H_out(t−1).

Legend: B sequences, h units; drive.gates is (B, 4·h) in the order h, input, forget, output; the rest (B, h).
"""

from typing import NamedTuple

from torch import Tensor

from rnnewton.recurrent.cells.base import After, Cell, Drive, HiddenCell, Moment, Weights
from rnnewton.recurrent.cells.factor import Factor, factor, factor_adjoint, factor_tangent
from rnnewton.recurrent.cells.memory import (
    Gates,
    remember,
    remember_adjoint,
    remember_slopes,
    remember_tangent,
)


class Kept(NamedTuple):
    gates: Tensor  # (B, 4·h); gates, phi and rho as in `memory.Slopes`
    phi: Tensor | None
    rho: Tensor
    chi: Tensor
    xi: Tensor
    m: Tensor


class MultiplicativeLSTM(Cell):
    name = "mlstm"
    gates = ("h", "input", "forget", "output")
    gated = True
    factored = True

    def forward(
        self, weights: Weights, drive: Drive, before: HiddenCell
    ) -> tuple[HiddenCell, tuple[Gates, Factor]]:
        factors = factor(weights, drive, before)
        gates = weights.recurrent.onto(drive.gates, factors.m)
        state, squashed = remember(gates, before, True, self.squash_input)
        return state, (squashed, factors)

    def slopes(self, before: HiddenCell, after: HiddenCell, kept: tuple[Gates, Factor]) -> Kept:
        return Kept(*remember_slopes(before, after, kept[0], self.squash_input), *kept[1])

    def tangent(self, weights: Weights, moment: Moment, drive: Drive, before: HiddenCell) -> HiddenCell:
        r_m = factor_tangent(weights, moment.kept, drive, before)
        r_gates = weights.recurrent.onto(drive.gates, r_m)
        return remember_tangent(r_gates, before, moment, moment.kept)

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, HiddenCell]:
        d_gates, d_cell_before = remember_adjoint(after, moment, moment.kept)
        d_chi, d_xi, d_out_before = factor_adjoint(weights, moment.kept, d_gates)
        return Drive(d_gates, d_chi, d_xi), HiddenCell(d_out_before, d_cell_before)
