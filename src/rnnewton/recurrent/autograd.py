"""The passes as one differentiable function of torch, so that plain autograd and torch.func get their speed.

Legend: T steps, B sequences, V inputs, O outputs; flat: all weights in parameter order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells.base import Drive, Hidden, HiddenCell, State
from rnnewton.recurrent.matrices import Arithmetic
from rnnewton.recurrent.network import Network, cut, network_of
from rnnewton.recurrent.passes.adjoint import adjoint_segment, zero_cotangent
from rnnewton.recurrent.passes.forward import forward_segment, read_out
from rnnewton.recurrent.passes.tangent import r_read_out, tangent_segment
from rnnewton.recurrent.passes.tape import Course, LayerTape, Tape, is_derived


def unroll(
    architecture: Architecture, flat: Tensor, inputs: Tensor, state: list[State], keep: bool
) -> tuple[Tensor, list[State]]:
    """z (T, B, O) and the states after the last step; `keep`: whether derivatives may be asked for."""
    if keep:
        tensors = [x for layer in state for x in layer]
        z, *rest = _Unroll.apply(architecture, flat, inputs, *tensors)
        return z, pack(rest[: len(tensors)], type(state[0]))
    net = network_of(architecture, flat, Arithmetic(flat.dtype))
    tape = forward_segment(net, inputs, state, 0, keep=False)
    z = read_out(net, [layer.course.out[1:] for layer in tape.layers])
    return z, [type(s)(*(x.clone() for x in s)) for s in tape.last()]


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(architecture: Architecture, flat: Tensor, inputs: Tensor, *state: Tensor) -> Any:  # type: ignore[override]  # torch leaves the arguments open
        net = network_of(architecture, flat, Arithmetic(flat.dtype))
        kind = HiddenCell if net.cell.gated else Hidden
        tape = forward_segment(net, inputs, pack(list(state), kind), 0)
        z = read_out(net, [layer.course.out[1:] for layer in tape.layers])
        last = [x.clone() for layer in tape.last() for x in layer]
        return (z, *last, *_tensors(tape))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        architecture, flat, signal, *state = inputs
        ctx.architecture, ctx.states = architecture, len(state)
        tape = output[1 + len(state) :]
        ctx.mark_non_differentiable(*tape)
        ctx.save_for_backward(flat, signal, *tape)
        ctx.save_for_forward(flat, signal, *tape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        flat, signal, *tensors = ctx.saved_tensors
        net = network_of(ctx.architecture, flat, Arithmetic(flat.dtype))
        kind = HiddenCell if net.cell.gated else Hidden
        tape = _tape(net, tensors, signal.shape[0])
        after = pack(list(cotangents[1 : 1 + ctx.states]), kind)
        want_inputs = bool(ctx.needs_input_grad[2])
        pulled = adjoint_segment(net, tape, signal, (0, cotangents[0]), None, after, want_inputs)
        gradient = torch.zeros_like(flat)
        for flow in pulled.flows:
            flow.add_to(gradient, net.arithmetic)
        before = [x for layer in pulled.before for x in layer]
        return (None, gradient, pulled.inputs if want_inputs else None, *before)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, r_flat, r_inputs, *r_state = tangents
        flat, signal, *tensors = ctx.saved_tensors
        net = network_of(ctx.architecture, flat, Arithmetic(flat.dtype))
        kind = HiddenCell if net.cell.gated else Hidden
        tape = _tape(net, tensors, signal.shape[0])
        along = cut(net.layout, torch.zeros_like(flat) if r_flat is None else r_flat, net.arithmetic)
        zeros = [x for layer in zero_cotangent([layer.course.at(0) for layer in tape.layers]) for x in layer]
        before = pack([zero if r is None else r for zero, r in zip(zeros, r_state)], kind)
        courses = tangent_segment(net, along, tape, signal, before, r_inputs)
        outs = [layer.course.out[1:] for layer in tape.layers]
        r_z = r_read_out(net, along, outs, [course.out[1:] for course in courses])
        last = [x.clone() for course in courses for x in course.last]
        return (r_z, *last, *(None for _ in tensors))

    @staticmethod
    def vmap(info: Any, in_dims: Any, architecture: Architecture, *tensors: Any) -> Any:
        """One run per entry of the batched dimension: correct, not fast."""
        runs: list[Any] = []
        for index in range(info.batch_size):
            own = [x if dim is None else x.select(dim, index) for x, dim in zip(tensors, in_dims[1:])]
            runs.append(_Unroll.apply(architecture, *own))
        return tuple(torch.stack(results) for results in zip(*runs)), tuple(0 for _ in runs[0])


def pack(tensors: list[Tensor], kind: type[Hidden] | type[HiddenCell]) -> list[State]:
    size = len(kind._fields)
    return [kind(*tensors[start : start + size]) for start in range(0, len(tensors), size)]


def _tensors(tape: Tape) -> list[Tensor]:
    """Everything of the tape that is not None, in a fixed order."""
    return [
        x
        for layer in tape.layers
        for fields in (layer.course, layer.kept, layer.drive or ())
        for x in fields
        if x is not None
    ]


def _tape(net: Network, tensors: list[Tensor], steps: int) -> Tape:
    """The inverse of `_tensors`: the cell knows what it kept from a forward pass of nothing."""
    remaining = iter(tensors)
    layers: list[LayerTape] = []
    for index in range(net.architecture.depth):
        model = _shape_of(net, index, tensors[0])
        course = Course(next(remaining), next(remaining) if net.cell.gated else None)
        kept = _refill(model.kept, remaining)
        layers.append(
            LayerTape(course, kept, None if model.drive is None else _refill(model.drive, remaining))
        )
    return Tape(0, steps, tuple(layers))


def _refill(fields: Any, remaining: Any) -> Any:
    return type(fields)(*(None if x is None else next(remaining) for x in fields))


def _shape_of(net: Network, index: int, like: Tensor) -> LayerTape:
    """One step of one sequence on the meta device: which fields this cell fills."""
    width = net.architecture.hidden[index]

    def empty(columns: int) -> Tensor:
        return torch.empty(1, columns, dtype=like.dtype, device="meta")

    weights = net.weights.layers[index].step
    step = type(weights)(*(w and type(w)(torch.empty_like(w.weight, device="meta")) for w in weights))
    drive = Drive(empty(len(net.cell.gates) * width), empty(width) if net.cell.factored else None)
    before = HiddenCell(empty(width), empty(width)) if net.cell.gated else Hidden(empty(width))
    _, kept = net.cell.forward(step, drive, before)
    return LayerTape(Course(before.out, None), kept, drive if is_derived(net.cell) else None)
