"""The networks of the thesis as one `nn.Module`: weights in the thesis's letters, autograd by the
hand-written passes, linearised for products.

Legend: T steps, B sequences, h units, V inputs, O outputs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rnnewton.recurrent.architecture import Architecture, Real
from rnnewton.recurrent.autograd import unroll
from rnnewton.recurrent.blocks import Block, block_of, check_symbols, check_values, checked_state, chunks_of
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.initialization import Initialization, Normal
from rnnewton.recurrent.kernels import NativeStream, Way, learn_block, open_chunk, open_stream, read_block
from rnnewton.recurrent.layout import Layout, layout_of
from rnnewton.recurrent.linearization import Choices, RecurrentLinearization
from rnnewton.recurrent.losses import LOSSES
from rnnewton.recurrent.matrices import arithmetic_of
from rnnewton.recurrent.memory import Memory
from rnnewton.recurrent.network import zero_state
from rnnewton.recurrent.reference import reference_forward

DEFAULT_INIT = Normal(0.1)


class RecurrentModel(nn.Module):
    """A stack of one cell, any depth and widths; the weights' names and order are in DESIGN.md."""

    def __init__(
        self,
        cell: str = "mlstm",
        hidden: int | tuple[int, ...] = (170,),
        inputs: int | Real = 70,
        outputs: int | Real = 70,
        loss: str = "softmax",
        *,
        direct_input: bool = True,
        direct_output: bool = True,
        bias: bool | None = None,
        output_bias: bool = False,
        squash_input: bool = False,
        forget_bias: float | None = None,
        init: Initialization = DEFAULT_INIT,
        seed: int = 0,
    ) -> None:
        super().__init__()
        widths = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
        self.architecture = Architecture(
            cell, widths, inputs, outputs, loss, direct_input, direct_output, bias, output_bias, squash_input
        )
        self.init, self.seed = init, seed
        self.alphabet: Any = None  # set by whoever trains on text: .symbols, .encode, .decode
        self.route = "plain"  # how eager passes multiply on a CPU: see routes.py
        self._build()
        self.reset_parameters()
        if forget_bias is not None:
            self._set_forget_bias(forget_bias)

    @property
    def hidden(self) -> tuple[int, ...]:
        return self.architecture.hidden

    @property
    def layout(self) -> Layout:
        return layout_of(self.architecture)

    def reset_parameters(self) -> None:
        """Draws every weight again from `init` and `seed`."""
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:
                drawn = self.init.draw(name, tuple(parameter.shape), self.seed)
                with torch.no_grad():
                    parameter.copy_(drawn)

    def forward(self, inputs: Tensor, state: list[State] | None = None) -> tuple[Tensor, list[State]]:
        """Outputs (T, B, O) before the softmax, and the state after the last step, to be given back for the
        next block. Nothing is detached."""
        flat = self._flat()
        sequences, signal = self._signal(inputs, flat)
        before = self._state(state, sequences, flat)
        if not torch.is_grad_enabled():
            native = read_block(self.architecture, flat, signal, before)
            if native is not None:
                return native
        return unroll(self.architecture, flat, signal, before, keep=torch.is_grad_enabled())

    def stream(self) -> NativeStream | None:
        """One stream of symbols at the present weights in the native kernels, from a state of zeros; None
        where they cannot be had."""
        return open_stream(self.architecture, self._flat().detach())

    def learn(
        self, inputs: Tensor, targets: Tensor, state: list[State] | None
    ) -> tuple[Tensor, list[State], list[Tensor]] | None:
        """Outputs, last states, and the gradient of the summed loss for each parameter, by the native
        kernels; None where they cannot be had."""
        learnt = learn_block(self.architecture, self._flat().detach(), (inputs, targets), state)
        if learnt is None:
            return None
        outputs, last, gradient = learnt
        parameters = list(self.parameters())
        pieces = gradient.split([parameter.numel() for parameter in parameters])
        return outputs, last, [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters)]

    def reference(self, inputs: Tensor, state: list[State] | None = None) -> tuple[Tensor, list[list[State]]]:
        """The same by the slow, obvious loop: outputs, and the states of every layer after every step."""
        flat = self._flat()
        _, signal = self._signal(inputs, flat)
        return reference_forward(self.architecture, flat, signal, self._state(state, signal.shape[1], flat))

    def linearize(
        self,
        inputs: Any,
        targets: Any = None,
        state: Any = None,
        at: Any = "every",
        memory: Memory = "stored",
        precision: str | None = None,
        spacing: str = "even",
        kernels: str = "auto",
    ) -> RecurrentLinearization:
        """The network and its loss at the present weights on a batch: one block, two lists of blocks, or a
        list of `(inputs, targets[, at[, state]])`. `memory`: "stored", "recomputed" or a number of bytes;
        `kernels`: "auto", "native" (the C++ passes, or an error) or "eager"."""
        flat = self._flat().detach()
        blocks, listed = self._blocks(inputs, targets, state, at, flat)
        count = check_values(self.architecture, blocks, flat)
        choices = Choices(memory, arithmetic_of(precision, flat.dtype, self.route), spacing, kernels)
        with torch.no_grad():
            return RecurrentLinearization(
                self.architecture, flat, blocks, count, choices, listed, lambda: self._still(flat)
            )

    def mean_loss(self, inputs: Any, targets: Any = None, state: Any = None, at: Any = "every") -> Tensor:
        """The loss of a batch, a float64 scalar: forward only, nothing kept."""
        with torch.no_grad():
            flat = self._flat()
            blocks, _ = self._blocks(inputs, targets, state, at, flat)
            count = check_values(self.architecture, blocks, flat)
            return torch.stack([self._loss_sum(block, flat) for block in blocks]).sum() / count

    def scored(self, inputs: Any, targets: Any = None, state: Any = None, at: Any = "every") -> int:
        """n, the number of scored positions of a batch."""
        total = 0
        for signal, _, where, _ in chunks_of(inputs, targets, state, at)[0]:
            steps, sequences = signal.shape[:2]
            if isinstance(where, Tensor):
                total += where.numel() if where.is_meta else int(where.sum())
            else:
                total += sequences * (1 if where == "last" else steps)
        return total

    def zero_state(self, sequences: int) -> list[State]:
        flat = next(self.parameters())
        return zero_state(self.architecture, make_cell(self.architecture), sequences, flat.detach())

    def add_layer(self, width: int) -> None:
        """Grows the stack by one layer on top. Its readout starts at zero, so that the loss is what it was.

        A stack without direct output keeps its readout and adds the new one beside it: it has direct output
        from then on. Optimisers hold the old parameters and must be made anew.
        """
        old = dict(self.named_parameters())
        like = next(iter(old.values()))
        self.architecture = replace(self.architecture, hidden=(*self.hidden, width), direct_output=True)
        self._build()
        self.to(device=like.device, dtype=like.dtype)
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if name in old:
                    parameter.copy_(old[name])
                    parameter.requires_grad_(old[name].requires_grad)
                elif name.endswith("W_oh"):
                    parameter.zero_()
                elif not parameter.is_meta:
                    parameter.copy_(self.init.draw(name, tuple(parameter.shape), self.seed))

    def save(self, folder: str | Path) -> None:
        from rnnewton.recurrent.saving import save

        save(self, folder)

    def extra_repr(self) -> str:
        a = self.architecture
        return f"cell={a.cell!r}, hidden={a.hidden}, inputs={a.inputs}, outputs={a.outputs}, loss={a.loss!r}"

    def _build(self) -> None:
        """Parameters in the layout's order, all of them new."""
        self.layers = nn.ModuleList(nn.Module() for _ in self.hidden)
        for named in self.layout.names:
            owner, _, letters = named.name.rpartition(".")
            if owner == "outputs":  # a module of its own, so that B_o comes after the layers
                self.outputs = nn.Module()
            self.get_submodule(owner).register_parameter(letters, nn.Parameter(torch.empty(named.shape)))

    def _set_forget_bias(self, value: float) -> None:
        names = [name for name, _ in self.named_parameters() if name.endswith("B_forget")]
        if not names:
            raise ValueError("forget_bias needs a cell with a forget gate and bias=True")
        with torch.no_grad():
            for name in names:
                self.get_parameter(name).fill_(value)

    def _flat(self) -> Tensor:
        weights: list[Tensor] = []
        for named in self.layout.names:  # by attribute: under torch.func a parameter is a plain tensor
            owner, _, letters = named.name.rpartition(".")
            weights.append(getattr(self.get_submodule(owner), letters).reshape(-1))
        return torch.cat(weights)

    def _still(self, flat: Tensor) -> bool:
        """Whether these are still the weights. By value: a change through `.data` has no version."""
        now = self._flat().detach()
        if now.shape != flat.shape or now.dtype != flat.dtype or now.device != flat.device:
            return False
        return flat.is_meta or torch.equal(now, flat)

    def _signal(self, inputs: Any, flat: Tensor) -> tuple[int, Tensor]:
        """The inputs, checked as those of a block whose targets nobody asks for."""
        shape = (*inputs.shape[:2],) if isinstance(inputs, Tensor) else ()
        outputs = self.architecture.outputs
        if isinstance(outputs, Real):
            targets = flat.new_empty((*shape, outputs.size))
        else:
            targets = flat.new_empty(shape, dtype=torch.int64)
        gated = make_cell(self.architecture).gated
        signal = block_of(self.architecture, (inputs, targets, "every", None), flat, gated).inputs
        if self.architecture.categorical:
            check_symbols("inputs", signal, self.architecture.input_size)
        return signal.shape[1], signal

    def _state(self, state: Any, sequences: int, flat: Tensor) -> list[State]:
        cell = make_cell(self.architecture)
        if state is None:
            return zero_state(self.architecture, cell, sequences, flat.detach())
        return checked_state(self.architecture, state, sequences, flat, cell.gated)

    def _blocks(
        self, inputs: Any, targets: Any, state: Any, at: Any, flat: Tensor
    ) -> tuple[list[Block], bool]:
        chunks, listed = chunks_of(inputs, targets, state, at)
        if not chunks:
            raise ValueError("the batch is empty: a list of no chunks")
        gated = make_cell(self.architecture).gated
        return [block_of(self.architecture, chunk, flat, gated) for chunk in chunks], listed

    def _loss_sum(self, block: Block, flat: Tensor) -> Tensor:
        native, _ = open_chunk(self.architecture, flat, block, Way(memory="recomputed"))
        if native is not None:
            return native.loss_sum
        before = self._state(block.state, block.inputs.shape[1], flat)
        z, _ = unroll(self.architecture, flat, block.inputs, before, keep=False)
        start, stop = block.scored.rows(0, block.inputs.shape[0]) or (0, 0)
        mask = block.scored.masked(start, stop)
        return LOSSES[self.architecture.loss].value(z[start:stop], block.targets[start:stop], mask)
