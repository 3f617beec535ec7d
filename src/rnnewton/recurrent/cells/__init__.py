"""The registry of cells: a new cell is one file here and one line in `CELLS`."""

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells.base import Cell
from rnnewton.recurrent.cells.lstm import LSTM
from rnnewton.recurrent.cells.lstm_original import OriginalLSTM
from rnnewton.recurrent.cells.mlstm import MultiplicativeLSTM
from rnnewton.recurrent.cells.mrnn import MultiplicativeRNN
from rnnewton.recurrent.cells.rnn import RNN

CELLS: dict[str, type[Cell]] = {
    cell.name: cell for cell in (RNN, LSTM, OriginalLSTM, MultiplicativeRNN, MultiplicativeLSTM)
}

__all__ = ["CELLS", "Cell", "make_cell"]


def make_cell(architecture: Architecture) -> Cell:
    if architecture.cell not in CELLS:
        raise ValueError(f"cell={architecture.cell!r} is not known; the cells are {', '.join(CELLS)}")
    kind = CELLS[architecture.cell]
    if architecture.squash_input and not kind.gated:
        raise ValueError(
            f"squash_input=True needs a gated cell; the cell input of {kind.name!r} is squashed anyway"
        )
    return kind(squash_input=architecture.squash_input)
