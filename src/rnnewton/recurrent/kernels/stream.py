"""One stream through the native library: read symbols, draw symbols, learn online as chapter 2.2 does.

Legend: N symbols in a row, O outputs, h units, S sources of a gate, G gates with a trace.
"""

import weakref
from ctypes import byref, c_double, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State
from rnnewton.recurrent.kernels.chunk import addresses, c_architecture
from rnnewton.recurrent.kernels.interface import COnlineTask


class NativeStream:
    """A model's weights, packed once, and the state of one stream of symbols."""

    def __init__(self, library: Any, architecture: Architecture, flat: Tensor) -> None:
        self.architecture, self._library = architecture, library
        native, flat = c_architecture(architecture), flat.contiguous()
        self._handle = library.rn_stream_open(byref(native), c_void_p(flat.data_ptr()))
        if not self._handle:
            raise MemoryError("there is no memory for the packed weights")
        self._finalizer = weakref.finalize(self, library.rn_stream_close, self._handle)
        self._like = flat.new_empty(0)

    def read(self, ids: Tensor) -> Tensor:
        """The outputs (N, O) after each of some symbols (N,)."""
        ids = ids.contiguous()
        logits = self._like.new_empty(len(ids), self.architecture.output_size)
        if len(ids):
            self._step(c_void_p(ids.data_ptr()), len(ids), c_void_p(logits.data_ptr()))
        return logits

    def write(self, level: float, allowed: Tensor, temperature: float) -> int:
        """Draws the next symbol, at `level` (0 … 1) of the cumulative distribution over those that a bool
        mask allows, and reads it."""
        mask = c_void_p(allowed.data_ptr())
        symbol = int(self._library.rn_stream_draw(self._handle, level, mask, temperature))
        self._step(byref(c_int64(symbol)), 1, None)
        return symbol

    @property
    def state(self) -> list[State]:
        kind = HiddenCell if make_cell(self.architecture).gated else Hidden
        state: list[State] = [
            kind(*(self._like.new_empty(1, width) for _ in kind._fields))
            for width in self.architecture.hidden
        ]
        self._exchange(state, 0)
        return state

    @state.setter
    def state(self, state: list[State]) -> None:
        self._exchange([type(layer)(*(x.contiguous() for x in layer)) for layer in state], 1)

    def _exchange(self, state: list[State], put: int) -> None:
        cells = [layer.cell for layer in state if isinstance(layer, HiddenCell)]
        out = addresses([layer.out for layer in state])
        self._library.rn_stream_state(self._handle, out, addresses(cells) if cells else None, put)

    def _step(self, ids: Any, count: int, logits: Any) -> None:
        if self._library.rn_stream_read(self._handle, ids, count, logits):
            raise MemoryError("there is no memory for the outputs of so many symbols; read fewer at a time")


class OnlineWeights(NamedTuple):
    """What online learning changes in place, all contiguous float32."""

    gates: Tensor  # (G + 1, h, S), the output gate last
    readout: Tensor  # (O, h)
    output_bias: Tensor | None  # (O,)
    traces: Tensor  # (G, h, S)
    out: Tensor  # (h,)
    cell: Tensor  # (h,)


class OnlineRule(NamedTuple):
    rate: float
    clip: float  # 0: no clipping
    last_only: bool  # only the last step is scored


def learn_online(
    library: Any,
    architecture: Architecture,
    weights: OnlineWeights,
    signal: tuple[Tensor, Tensor],
    rule: OnlineRule,
) -> float:
    """Reads (inputs, targets) of one stream, (T,) symbols or (T, ·) vectors; updates after every scored step.

    Returns the summed loss, each step's at the weights before its update.
    """
    inputs, targets = (x.contiguous() for x in signal)
    real, squared = inputs.is_floating_point(), targets.is_floating_point()
    for tensor in weights:
        if tensor is not None and (tensor.dtype != torch.float32 or not tensor.is_contiguous()):
            raise ValueError(f"online learning works in place on contiguous float32, not {tensor.dtype}")
    bias = weights.output_bias
    task = COnlineTask(
        hidden=architecture.hidden[0],
        outputs=architecture.output_size,
        inputs=architecture.input_size,
        sources=weights.gates.shape[2],
        traced=weights.traces.shape[0],
        steps=len(inputs),
        squash=architecture.squash_input,
        squared_loss=squared,
        last_only=rule.last_only,
        rate=rule.rate,
        clip=rule.clip,
        ids=None if real else inputs.data_ptr(),
        vectors=inputs.data_ptr() if real else None,
        targets=None if squared else targets.data_ptr(),
        values=targets.data_ptr() if squared else None,
        gates=weights.gates.data_ptr(),
        readout=weights.readout.data_ptr(),
        output_bias=None if bias is None else bias.data_ptr(),
        traces=weights.traces.data_ptr(),
        out=weights.out.data_ptr(),
        cell=weights.cell.data_ptr(),
    )
    loss = c_double()
    if library.rn_learn_online(byref(task), byref(loss)):
        raise MemoryError("there is no memory for a padded copy of the weights and traces")
    return loss.value
