"""Standard RNN (thesis, chapter 2.1): H(t) = tanh(B_h + W_hi I(t) + W_hh H(t−1)).

Legend: B sequences, h units.
"""

from typing import NamedTuple

from torch import Tensor

from rnnewton.recurrent.cells.base import After, Cell, Drive, Hidden, Moment, Weights, tanh


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
        return Hidden(r_h_in * slope(moment.after.out))

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, Hidden]:
        d_h_in = after.out * slope(moment.after.out)
        if after.zeta is not None:
            d_h_in = d_h_in + after.zeta
        return Drive(d_h_in), Hidden(weights.recurrent.back(d_h_in))


def slope(out: Tensor) -> Tensor:
    """dtanh/dx from tanh's value: 1 − H ⊙ H."""
    return 1 - out * out
