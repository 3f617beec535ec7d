"""A block of sequences at fixed weights, multiplied by the native library: the drop-in for `EagerChunk`.

Legend: T steps, B sequences, V inputs, O outputs, h units, n scored positions. Everything is a plain sum,
not divided by n.
"""

import ctypes
import weakref
from ctypes import byref, c_double, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture, Real
from rnnewton.recurrent.blocks import Block
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State
from rnnewton.recurrent.kernels.interface import (
    CELLS,
    FORMS,
    PRECISIONS,
    TAPS,
    CArchitecture,
    CBatch,
    CTraffic,
)
from rnnewton.recurrent.layout import has_bias


class Way(NamedTuple):
    """How a native chunk computes, never what."""

    precision: str = "fp32"  # "fp32" or "bf16": the format of the matrix operands
    memory: str | int = "stored"  # "stored", "recomputed" (inside each tile), or a budget in bytes
    threads: int = 0  # 0: as many as torch uses


class NativeChunk:
    """`loss_sum`, `gradient`, `product` as the eager chunk has them, in the native library."""

    def __init__(
        self, library: Any, architecture: Architecture, flat: Tensor, block: Block, way: Way
    ) -> None:
        self.architecture, self.block, self.way = architecture, block, way
        self._library, self._flat = library, flat.contiguous()
        self._batch = _Batch(block)
        threads = way.threads or torch.get_num_threads()
        native = c_architecture(architecture)
        handle = library.rn_open(
            byref(native),
            byref(self._batch.native),
            _address(self._flat),
            PRECISIONS[way.precision],
            threads,
        )
        if not handle:
            raise MemoryError("there is no memory for the packed weights")
        self._handle = handle
        self._finalizer = weakref.finalize(self, library.rn_close, handle)
        self._loss: float | None = None
        self._last: list[State] | None = None
        self.stored = True  # so that the sizes below are those of storing
        if isinstance(way.memory, int):
            self.stored = self.stored_bytes + self.workspace_bytes <= way.memory
        else:
            self.stored = way.memory == "stored"
        if self.stored:
            library.rn_keep(handle)
            self._forward()

    @property
    def loss_sum(self) -> Tensor:
        """Float64, over the scored positions."""
        if self._loss is None:
            self._forward()
        return self._flat.new_tensor(self._loss, dtype=torch.float64)

    @property
    def last(self) -> list[State]:
        """The states after the last step."""
        if self._last is None:
            self._forward()
        assert self._last is not None
        return self._last

    def logits(self) -> Tensor:
        """The outputs of every step (T, B, O), before the softmax."""
        steps, sequences = self.block.inputs.shape[:2]
        z = self._flat.new_empty(steps, sequences, self.architecture.output_size)
        self._forward(z)
        return z

    def gradient(self, into: Tensor) -> None:
        loss = c_double()
        self._check(self._library.rn_gradient(self._handle, _into(into, self._flat), byref(loss)))
        if not self.stored:
            self._loss = loss.value

    def product(self, v: Tensor, into: Tensor, structural: Any = (0.0, "matching", "output")) -> None:
        """into += Jᵀ (H_loss J v + mu S R(states)); structural = (mu, form, tap)."""
        mu, form, tap = structural
        v = v.contiguous()
        if v.shape != self._flat.shape or v.dtype != torch.float32:
            raise ValueError(
                f"a direction is a float32 vector of {self._flat.numel()} numbers; "
                f"{v.dtype} {tuple(v.shape)} was given"
            )
        target = _into(into, self._flat)
        self._check(
            self._library.rn_product(self._handle, _address(v), target, float(mu), FORMS[form], TAPS[tap])
        )

    def predictions(self) -> Tensor:
        """Probabilities (softmax) or outputs (squared), (T, B, O), where activations are stored; anything at
        steps of which nothing is scored."""
        if not self.stored:
            raise RuntimeError("predictions are kept only with stored activations")
        p = self._flat.new_empty(*self.block.inputs.shape[:2], self.architecture.output_size)
        self._library.rn_predictions(self._handle, _address(p))
        return p

    def deltas(self, outputs: Tensor) -> list["LayerTraffic"]:
        """Back-propagates cotangents of the outputs (T, B, O): what arrives at each weight, by position."""
        steps, sequences = self.block.inputs.shape[:2]
        cell = make_cell(self.architecture)

        def room(length: int, width: int) -> Tensor:
            return self._flat.new_empty(length, sequences, width)

        layers = [
            LayerTraffic(
                gates=room(steps, len(cell.gates) * width),
                out=room(steps + 1, width),
                xi=room(steps, width) if cell.factored else None,
                chi=room(steps, width) if cell.factored else None,
                m=room(steps, width) if cell.factored else None,
            )
            for width in self.architecture.hidden
        ]

        def column(field: str) -> Any:
            tensors = [getattr(layer, field) for layer in layers]
            return None if tensors[0] is None else addresses(tensors)

        outputs = outputs.contiguous()
        fields = {name: column(name) for name in ("gates", "xi", "chi", "m", "out")}
        task = CTraffic(outputs=outputs.data_ptr(), **fields)
        self._check(self._library.rn_traffic(self._handle, byref(task)))
        return layers

    @property
    def stored_bytes(self) -> int:
        """What storing the activations takes."""
        return int(self._library.rn_stored_bytes(self._handle))

    @property
    def workspace_bytes(self) -> int:
        """What a product takes beside stored activations; what it takes in all where nothing is stored."""
        return int(self._library.rn_workspace_bytes(self._handle, int(self.stored)))

    def _forward(self, logits: Tensor | None = None) -> None:
        loss = c_double()
        sequences = self.block.inputs.shape[1]
        gated = make_cell(self.architecture).gated
        kind = HiddenCell if gated else Hidden
        last: list[State] = []
        for width in self.architecture.hidden:
            last.append(kind(*(self._flat.new_empty(sequences, width) for _ in kind._fields)))
        out = addresses([layer.out for layer in last])
        state = addresses([layer.cell for layer in last if isinstance(layer, HiddenCell)]) if gated else None
        z = None if logits is None else _address(logits)
        self._check(self._library.rn_forward(self._handle, byref(loss), z, out, state))
        self._loss, self._last = loss.value, last

    def _check(self, code: int) -> None:
        if code:
            raise MemoryError(
                "there is no memory for this block's activations or workspace; "
                "give fewer sequences at a time, or memory='recomputed'"
            )


class LayerTraffic(NamedTuple):
    """Of one layer, at every position."""

    gates: Tensor  # (T, B, G h) cotangents of what enters the gates
    out: Tensor  # (T + 1, B, h) H_out, the state before the first step in front
    xi: Tensor | None  # (T, B, h) cotangents of W_mh H(t-1), factored cells
    chi: Tensor | None  # (T, B, h) cotangents of W_mi I(t)
    m: Tensor | None  # (T, B, h) M(t)


class _Batch:
    """The C view of a block, and the tensors that must live as long as it is used."""

    def __init__(self, block: Block) -> None:
        inputs, targets = block.inputs.contiguous(), block.targets.contiguous()
        mask = block.scored.mask
        if block.scored.last:
            mask = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
            mask[-1] = True
        mask = None if mask is None else mask.contiguous().view(torch.uint8)
        states = block.state or []
        out = [state.out.contiguous() for state in states]
        cell = [state.cell.contiguous() for state in states if isinstance(state, HiddenCell)]
        self._alive = (inputs, targets, mask, out, cell)
        self.native = CBatch(
            steps=inputs.shape[0],
            sequences=inputs.shape[1],
            ids=None if inputs.is_floating_point() else inputs.data_ptr(),
            vectors=inputs.data_ptr() if inputs.is_floating_point() else None,
            targets=None if targets.is_floating_point() else targets.data_ptr(),
            values=targets.data_ptr() if targets.is_floating_point() else None,
            scored=None if mask is None else ctypes.cast(mask.data_ptr(), ctypes.POINTER(ctypes.c_uint8)),
            out=addresses(out) if out else None,
            state=addresses(cell) if cell else None,
        )


def c_architecture(architecture: Architecture) -> CArchitecture:
    native = CArchitecture(
        cell=CELLS[architecture.cell],
        depth=architecture.depth,
        inputs=architecture.input_size,
        outputs=architecture.output_size,
        real_inputs=isinstance(architecture.inputs, Real),
        squared_loss=architecture.loss == "squared",
        direct_input=architecture.direct_input,
        direct_output=architecture.direct_output,
        bias=has_bias(architecture, make_cell(architecture)),
        output_bias=architecture.output_bias,
        squash_input=architecture.squash_input,
    )
    for layer, width in enumerate(architecture.hidden):
        native.hidden[layer] = width
    return native


def _address(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def addresses(tensors: list[Tensor]) -> Any:
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _into(into: Tensor, flat: Tensor) -> c_void_p:
    if into.shape != flat.shape or into.dtype != torch.float32 or not into.is_contiguous():
        raise ValueError(f"results are added into a contiguous float32 vector of {flat.numel()} numbers")
    return _address(into)
