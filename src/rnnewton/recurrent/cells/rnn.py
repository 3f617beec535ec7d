"""Standard RNN (thesis, chapter 2.1): H(t) = tanh(B_h + W_hi I(t) + W_hh H(t−1)).

Legend: B sequences, h units.
"""

from typing import NamedTuple

from rnnewton.recurrent.cells.base import After, Cell, Drive, Hidden, Moment, Weights, tanh, through_tanh


class Kept(NamedTuple):
    pass  # H(t) itself is all that the derivatives need


class RNN(Cell):
    name = "rnn"
    biased = True

    def forward(self, weights: Weights, drive: Drive, before: Hidden) -> tuple[Hidden, Kept]:
        h_in = weights.recurrent.onto(drive.gates, before.out)
        return Hidden(tanh(h_in)), Kept()

    def tangent(self, weights: Weights, moment: Moment, drive: Drive, before: Hidden) -> Hidden:
        r_h_in = weights.recurrent.onto(drive.gates, before.out)
        return Hidden(through_tanh(r_h_in, moment.after.out))

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, Hidden]:
        d_h_in = through_tanh(after.out, moment.after.out)
        if after.zeta is not None:
            d_h_in = d_h_in + after.zeta
        return Drive(d_h_in), Hidden(weights.recurrent.back(d_h_in))
