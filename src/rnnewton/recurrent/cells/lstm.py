"""LSTM as the thesis defines it (chapter 2.2): linear cell input, three gates, output tanh(H_state ⊙ rho).

Legend: B sequences, h units; drive.gates is (B, 4·h) in the order h, input, forget, output.
"""

from rnnewton.recurrent.cells.base import After, Cell, Drive, HiddenCell, Moment, Weights
from rnnewton.recurrent.cells.memory import (
    Gates,
    Slopes,
    remember,
    remember_adjoint,
    remember_slopes,
    remember_tangent,
)


class LSTM(Cell):
    name = "lstm"
    gates = ("h", "input", "forget", "output")
    gated = True

    def forward(self, weights: Weights, drive: Drive, before: HiddenCell) -> tuple[HiddenCell, Gates]:
        gates = weights.recurrent.onto(drive.gates, before.out)
        return remember(gates, before, "forget" in self.gates, self.squash_input)

    def slopes(self, before: HiddenCell, after: HiddenCell, kept: Gates) -> Slopes:
        return remember_slopes(before, after, kept, self.squash_input)

    def tangent(self, weights: Weights, moment: Moment, drive: Drive, before: HiddenCell) -> HiddenCell:
        r_gates = weights.recurrent.onto(drive.gates, before.out)
        return remember_tangent(r_gates, before, moment, moment.kept)

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, HiddenCell]:
        d_gates, d_cell_before = remember_adjoint(after, moment, moment.kept)
        return Drive(d_gates), HiddenCell(weights.recurrent.back(d_gates), d_cell_before)
