"""One forward pass, then any number of gradients and damped Gauss-Newton products (DESIGN.md, "Units").

Legend: T steps, B sequences, h units, O outputs; v, gradient and product are flat vectors in parameter order.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from rnnewton.newton.problem import WeightTraffic
from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.blocks import Block, check_cotangents
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State
from rnnewton.recurrent.chunk import FORMS, TAPS, EagerChunk, Structural
from rnnewton.recurrent.kernels import NativeChunk, Way, open_chunk
from rnnewton.recurrent.kernels.traffic import flows as native_flows
from rnnewton.recurrent.losses import LOSSES
from rnnewton.recurrent.matrices import Arithmetic
from rnnewton.recurrent.memory import Memory, Plan, Tile, plan_of
from rnnewton.recurrent.network import cut, network_of
from rnnewton.recurrent.passes.adjoint import Flow, Tap
from rnnewton.recurrent.passes.tape import is_derived
from rnnewton.recurrent.passes.workspace import Workspace
from rnnewton.recurrent.reference import reference_loss


class Choices(NamedTuple):
    """How to compute, never what."""

    memory: Memory = "stored"
    arithmetic: Arithmetic = Arithmetic(torch.float32)
    spacing: str = "even"
    kernels: str = "auto"  # "native", "eager", or the native ones where they can be had


DEFAULT_CHOICES = Choices()


class RecurrentLinearization:
    """`jvp`, `vjp`, `gradient` and `gauss_newton` at the weights that the model had when this was made."""

    def __init__(
        self,
        architecture: Architecture,
        flat: Tensor,
        blocks: list[Block],
        count: int,
        choices: Choices = DEFAULT_CHOICES,
        listed: bool = False,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        self.architecture, self.count = architecture, count
        self._flat, self._blocks, self._listed, self._unchanged = flat, blocks, listed, unchanged
        self._choices = choices
        in_place = not is_derived(make_cell(architecture))
        self._arithmetic = choices.arithmetic._replace(in_place=in_place)
        self.net = network_of(architecture, flat.to(self._arithmetic.dtype), self._arithmetic)
        self._space = Workspace()
        self._native = [self._native_chunk(block) for block in blocks]
        losses = [chunk.loss_sum for chunk in self._parts()]
        self.loss = torch.stack(losses).sum() / count

    def gradient(self) -> Tensor:
        with self._passes() as into:
            for chunk in self._parts():
                chunk.gradient(into)
        return self._own(into / self.count)

    def gauss_newton(
        self,
        v: Tensor,
        structural: float = 0.0,
        tikhonov: float = 0.0,
        form: str = "matching",
        tap: str = "output",
    ) -> Tensor:
        """(G + mu G_s + lambda I) v."""
        self._check_structural(form, tap)
        direction = self._direction(v)
        along = cut(self.net.layout, direction, self._arithmetic)
        with self._passes() as into:
            for chunk in self._parts():
                if isinstance(chunk, NativeChunk):
                    chunk.product(direction, into, Structural(structural, form, tap))
                else:
                    chunk.product(along, into, Structural(structural, form, tap))
        product = into / self.count
        if tikhonov:
            product = product + tikhonov * v.to(product.dtype)
        return self._own(product)

    def jvp(self, v: Tensor) -> Any:
        """R(outputs) (T, B, O) and R(states), a NamedTuple of (T, B, h) per layer; a list of pairs for a
        list of chunks."""
        along = cut(self.net.layout, self._direction(v), self._arithmetic)
        pairs: list[tuple[Tensor, list[State]]] = []
        with self._passes():
            for tiles in self._tiles:
                parts = [chunk.jvp(along) for _, chunk in tiles]
                outputs = self._own(torch.cat([part[0] for part in parts], 1))
                states = [
                    self._joined([part[1][layer] for part in parts]) for layer in range(len(parts[0][1]))
                ]
                pairs.append((outputs, states))
        return pairs if self._listed else pairs[0]

    def vjp(self, outputs: Any = None, states: Any = None) -> Tensor:
        """Jᵀ of cotangents of the outputs (T, B, O) and of the states (what `jvp` returns; a field may be
        None); lists of them for a list of chunks. Not divided by n."""
        each_outputs = outputs if self._listed and outputs is not None else [outputs] * len(self._blocks)
        each_states = states if self._listed and states is not None else [states] * len(self._blocks)
        if len(each_outputs) != len(self._blocks) or len(each_states) != len(self._blocks):
            raise ValueError(
                f"a list of {len(self._blocks)} chunks takes as many cotangents: {len(each_outputs)} of "
                f"outputs and {len(each_states)} of states were given"
            )
        for block, d_z, d_states in zip(self._blocks, each_outputs, each_states):
            check_cotangents(self.architecture, block, d_z, d_states, self.net.cell.gated)
        with self._passes() as into:
            for tiles, d_z, d_states in zip(self._tiles, each_outputs, each_states):
                for tile, chunk in tiles:
                    chunk.vjp(self._columns(d_z, tile), self._tapped(d_states, tile), into)
        return self._own(into)

    def hessian(self, v: Tensor) -> Tensor:
        """The exact Hessian of the mean loss times v, by torch.func over the reference loop."""
        self._check_unchanged()
        self._direction(v)

        def loss(flat: Tensor) -> Tensor:
            sums = [reference_loss(self.architecture, flat, block) for block in self._blocks]
            return torch.stack(sums).sum() / self.count

        return self._own(torch.func.jvp(torch.func.grad(loss), (self._flat,), (v,))[1])

    def traffic(self, generator: Generator | None = None) -> Iterator[list[WeightTraffic]]:
        """What flows through every weight, a list per tile of sequences; targets drawn from the model's own
        outputs, or the true ones without a generator."""
        self._check_unchanged()
        names = self._block_names()
        for index, native in enumerate(self._native):
            if native is not None and native.stored:
                with torch.no_grad():
                    yield [
                        _traffic(names[flow.block.start], flow) for flow in native_flows(native, generator)
                    ]
                continue
            for _, chunk in self._tiles[index]:
                with torch.no_grad(), self._arithmetic.active(self._flat.device):
                    yield [_traffic(names[flow.block.start], flow) for flow in chunk.flows(generator)]

    @property
    def last_states(self) -> list[list[State]]:
        """The states after the last step, per chunk, for whoever carries them on."""
        return [
            native.last
            if native is not None
            else [
                self._joined([chunk.last[layer] for _, chunk in self._tiles[index]], 0)
                for layer in range(self.architecture.depth)
            ]
            for index, native in enumerate(self._native)
        ]

    def _share(self) -> Memory:
        memory = self._choices.memory
        return (
            memory // len(self._blocks) if type(memory) is int else memory
        )  # not a bool, whatever else it is

    def _plan(self, block: Block) -> Plan:
        steps, sequences = block.inputs.shape[:2]
        itemsize, spacing = self._arithmetic.dtype.itemsize, self._choices.spacing
        return plan_of(self.architecture, steps, sequences, self._share(), spacing, itemsize)

    def _native_chunk(self, block: Block) -> NativeChunk | None:
        """The block in the native kernels, or None where the eager passes have to do it."""
        choices = self._choices
        self._plan(block)  # a wrong `memory` or `spacing` is refused, whoever does the work
        if choices.kernels not in ("auto", "native", "eager"):
            raise ValueError(f"kernels={choices.kernels!r}: take 'auto', 'native' or 'eager'")
        if choices.kernels == "eager" or choices.arithmetic.dtype != torch.float32:
            return None
        way = Way("bf16" if choices.arithmetic.half else "fp32", self._share())
        chunk, reason = open_chunk(self.architecture, self._flat, block, way)
        if chunk is None and choices.kernels == "native":
            raise RuntimeError(f"kernels='native' cannot be had: {reason}")
        return chunk

    @cached_property
    def _tiles(self) -> list[list[tuple[Tile, EagerChunk]]]:
        """Every block in the eager passes, opened when first asked for."""
        with torch.no_grad(), self._arithmetic.active(self._flat.device):
            return [self._opened(block) for block in self._blocks]

    def _parts(self) -> Iterator[NativeChunk | EagerChunk]:
        """What sums are taken over: a native chunk per block, or its eager tiles."""
        for index, native in enumerate(self._native):
            if native is not None:
                yield native
            else:
                yield from (chunk for _, chunk in self._tiles[index])

    def _opened(self, block: Block) -> list[tuple[Tile, EagerChunk]]:
        plan = self._plan(block)
        loss = LOSSES[self.architecture.loss]
        block = _in_dtype(block, self._arithmetic.dtype)
        return [
            (tile, EagerChunk(self.net, loss, block.sequences(*tile), plan, self._space))
            for tile in plan.tiles
        ]

    def _chunks(self) -> Iterator[EagerChunk]:
        for tiles in self._tiles:
            for _, chunk in tiles:
                yield chunk

    def _passes(self) -> "_Passes":
        self._check_unchanged()
        return _Passes(self._arithmetic, self._flat)

    def _check_unchanged(self) -> None:
        if not self._unchanged():
            raise RuntimeError(
                "the model's weights changed after this linearisation was made; call model.linearize again"
            )

    def _check_structural(self, form: str, tap: str) -> None:
        if form not in FORMS:
            raise ValueError(f"form={form!r} is not known; take 'matching' or 'squared'")
        if tap not in TAPS:
            raise ValueError(f"tap={tap!r} is not known; take 'output' or 'cell'")
        if tap == "cell" and not self.net.cell.gated:
            raise ValueError(f"tap='cell' needs a gated cell; {self.architecture.cell!r} has only an output")

    def _direction(self, v: Tensor) -> Tensor:
        if v.shape != self._flat.shape or v.dtype != self._flat.dtype or v.device != self._flat.device:
            raise ValueError(
                f"a direction is a flat vector of {self._flat.numel()} numbers, {self._flat.dtype} on "
                f"{self._flat.device}; {tuple(v.shape)}, {v.dtype} on {v.device} was given"
            )
        return v.detach().to(self._arithmetic.dtype)

    def _own(self, x: Tensor) -> Tensor:
        return x.to(self._flat.dtype)

    def _joined(self, states: list[State], dim: int = 1) -> State:
        return type(states[0])(*(self._own(torch.cat(parts, dim)) for parts in zip(*states)))

    def _columns(self, x: Tensor | None, tile: Tile) -> Tensor | None:
        return None if x is None else x[:, tile.start : tile.stop].to(self._arithmetic.dtype)

    def _tapped(self, states: Any, tile: Tile) -> list[Tap] | None:
        if states is None:
            return None
        return [
            Tap(
                out=self._columns(state.out, tile),
                cell=self._columns(state.cell, tile) if isinstance(state, HiddenCell) else None,
            )
            if isinstance(state, Hidden | HiddenCell)
            else Tap()
            for state in states
        ]

    def _block_names(self) -> dict[int, str]:
        """The name of the first weight of every fused block, by its start in the flat vector."""
        names: dict[int, str] = {}
        start = 0
        for named in self.net.layout.names:
            names[start] = named.name
            start += torch.Size(named.shape).numel()
        return names


class _Passes:
    """A zero accumulator, no autograd, and the precision switched on for the products inside."""

    def __init__(self, arithmetic: Arithmetic, flat: Tensor) -> None:
        self._into = torch.zeros_like(flat, dtype=arithmetic.dtype)
        self._contexts = (torch.no_grad(), arithmetic.active(flat.device))

    def __enter__(self) -> Tensor:
        for context in self._contexts:
            context.__enter__()
        return self._into

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def _in_dtype(block: Block, dtype: torch.dtype) -> Block:
    def cast(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    state = block.state and [type(s)(*(x.detach().to(dtype) for x in s)) for s in block.state]
    return Block(cast(block.inputs), cast(block.targets), block.scored, state)


def _traffic(name: str, flow: Flow) -> WeightTraffic:
    source = flow.source
    if source is None:
        source = flow.delta.new_ones(1, 1, 1).expand(*flow.delta.shape[:2], 1)
    block = flow.block
    return WeightTraffic(name, block.start, block.rows, block.columns, source, flow.delta)
