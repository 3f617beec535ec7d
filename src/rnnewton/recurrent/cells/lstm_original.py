"""The LSTM of 1997 (thesis, chapter 2.2, first half): no forget gate, the state is kept by a weight of 1.

Legend: B sequences, h units; drive.gates is (B, 3·h) in the order h, input, output.
"""

from rnnewton.recurrent.cells.lstm import LSTM


class OriginalLSTM(LSTM):
    name = "lstm-original"
    gates = ("h", "input", "output")
