"""Multiplicative RNN (thesis, chapter 2.4).

    H(t) = tanh(B_h + W_hi I(t) + W_hm M(t))        M(t) = W_mi I(t) ⊙ W_mh H(t−1)

chi = W_mi I(t) and xi = W_mh H(t−1), as in the thesis's appendix.
Legend: B sequences, h units; all tensors (B, h).
"""

from rnnewton.recurrent.cells.base import After, Cell, Drive, Hidden, Moment, Weights, tanh, through_tanh
from rnnewton.recurrent.cells.factor import Factor, factor, factor_adjoint, factor_tangent


class MultiplicativeRNN(Cell):
    name = "mrnn"
    factored = True
    biased = True

    def forward(self, weights: Weights, drive: Drive, before: Hidden) -> tuple[Hidden, Factor]:
        factors = factor(weights, drive, before)
        h_in = weights.recurrent.onto(drive.gates, factors.m)
        return Hidden(tanh(h_in)), factors

    def tangent(self, weights: Weights, moment: Moment, drive: Drive, before: Hidden) -> Hidden:
        r_m = factor_tangent(weights, moment.kept, drive, before)
        r_h_in = weights.recurrent.onto(drive.gates, r_m)
        return Hidden(through_tanh(r_h_in, moment.after.out))

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, Hidden]:
        d_h_in = through_tanh(after.out, moment.after.out)
        if after.zeta is not None:
            d_h_in = d_h_in + after.zeta
        d_chi, d_xi, d_out_before = factor_adjoint(weights, moment.kept, d_h_in)
        return Drive(d_h_in, d_chi, d_xi), Hidden(d_out_before)
