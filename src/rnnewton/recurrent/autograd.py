"""The passes as one differentiable function of torch, so that plain autograd and torch.func get their speed.

Legend: T steps, B sequences, V inputs, O outputs; flat: all weights in parameter order.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State
from rnnewton.recurrent.layout import layout_of
from rnnewton.recurrent.matrices import Arithmetic
from rnnewton.recurrent.network import Network, cut, network_of, zero_state
from rnnewton.recurrent.passes.adjoint import adjoint_segment, zero_cotangent
from rnnewton.recurrent.passes.forward import external_drive, forward_segment, read_out
from rnnewton.recurrent.passes.tangent import r_read_out, tangent_segment
from rnnewton.recurrent.passes.tape import Course, LayerTape, Tape, is_derived, row
from rnnewton.recurrent.passes.workspace import FRESH
from rnnewton.recurrent.reference import reference_forward


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
        ctx.save_for_backward(flat, signal, *state, *tape)
        ctx.save_for_forward(flat, signal, *tape)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        flat, signal, *rest = ctx.saved_tensors
        state, tape = rest[: ctx.states], rest[ctx.states :]
        given = cotangents[: 1 + ctx.states]
        want_inputs = bool(ctx.needs_input_grad[2])
        gradient, *before = _Pull.apply(ctx.architecture, want_inputs, flat, signal, *state, *given, *tape)
        d_inputs = before.pop() if want_inputs else None
        return (None, gradient, d_inputs, *before)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, r_flat, r_inputs, *r_state = tangents
        flat, signal, *tensors = ctx.saved_tensors
        net = network_of(ctx.architecture, flat, Arithmetic(flat.dtype))
        kind = HiddenCell if net.cell.gated else Hidden
        tape = _tape(net, tensors, signal.shape[0])
        along = cut(net.layout, torch.zeros_like(flat) if r_flat is None else r_flat, net.arithmetic)
        zeros = [x for layer in zero_cotangent([layer.course.at(0) for layer in tape.layers]) for x in layer]
        # Under torch.vmap the tangents are batched, the tape is not: the states begin as batched as they.
        level = sum(r.new_zeros(()) for r in tangents[1:] if r is not None)
        before = pack([level + (zero if r is None else r) for zero, r in zip(zeros, r_state)], kind)
        courses = tangent_segment(net, along, tape, signal, before, r_inputs)
        outs = [layer.course.out[1:] for layer in tape.layers]
        r_z = r_read_out(net, along, outs, [course.out[1:] for course in courses])
        last = [x.clone() for course in courses for x in course.last]
        return (r_z, *last, *(None for _ in tensors))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _one_by_one(_Unroll, info, in_dims, arguments)


class _Pull(torch.autograd.Function):
    """The walk back as a function of its own. Its derivatives, which are the second ones of the network, go
    through the reference loop: exact, and slow.

    Arguments: architecture, want_inputs, flat, inputs, states, cotangents of z and the last states, tape.
    Results: cotangents of flat, of the states, and of the inputs if wanted.
    """

    @staticmethod
    def forward(
        architecture: Architecture, want_inputs: bool, flat: Tensor, inputs: Tensor, *rest: Tensor
    ) -> Any:  # type: ignore[override]  # torch leaves the arguments open
        net = network_of(architecture, flat, Arithmetic(flat.dtype))
        kind = HiddenCell if net.cell.gated else Hidden
        states = architecture.depth * len(kind._fields)
        d_z, *d_last = rest[states : 2 * states + 1]
        tape = _tape(net, list(rest[2 * states + 1 :]), inputs.shape[0])
        pulled = adjoint_segment(net, tape, inputs, (0, d_z), None, pack(d_last, kind), want_inputs)
        gradient = torch.zeros_like(flat)
        for flow in pulled.flows:
            flow.add_to(gradient, net.arithmetic)
        before = [x.clone() for layer in pulled.before for x in layer]
        return (gradient, *before, pulled.inputs) if want_inputs else (gradient, *before)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        architecture, ctx.want_inputs, flat, signal, *rest = inputs
        states = len(output) - 1 - ctx.want_inputs
        ctx.architecture, ctx.states, ctx.tensors = architecture, states, len(rest)
        ctx.save_for_backward(flat, signal, *rest[: 2 * states + 1])
        ctx.save_for_forward(flat, signal, *rest[: 2 * states + 1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        flat, signal, *rest = ctx.saved_tensors
        function, primals = _reference_pull(ctx, flat, signal, rest)
        d_flat, *d_rest = torch.func.vjp(function, *primals)[1](tuple(cotangents))
        d_signal = d_rest.pop() if signal.is_floating_point() else None
        return (None, None, d_flat, d_signal, *d_rest, *[None] * (ctx.tensors - len(rest)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        flat, signal, *rest = ctx.saved_tensors
        function, primals = _reference_pull(ctx, flat, signal, rest)
        _, _, r_flat, r_signal, *r_rest = tangents
        given = (r_flat, *r_rest[: len(rest)], r_signal)
        filled = tuple(torch.zeros_like(x) if r is None else r for x, r in zip(primals, given))
        return tuple(torch.func.jvp(function, primals, filled)[1])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _one_by_one(_Pull, info, in_dims, arguments)


def _reference_pull(
    ctx: Any, flat: Tensor, signal: Tensor, rest: list[Tensor]
) -> tuple[Any, tuple[Tensor, ...]]:
    """The walk back as torch sees it through the reference loop, and the point where it is taken: flat, the
    rest, and the inputs if they are real."""
    architecture, states, want_inputs = ctx.architecture, ctx.states, ctx.want_inputs
    kind = HiddenCell if 2 * architecture.depth == states else Hidden

    real = signal.is_floating_point()

    def function(flat: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        inputs = rest[-1] if real else signal
        state, cotangents = rest[:states], rest[states : 2 * states + 1]

        def network(flat: Tensor, inputs: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            z, courses = reference_forward(architecture, flat, inputs, pack(list(state), kind))
            return (z, *(x for layer in courses[-1] for x in layer))

        if want_inputs:
            d_flat, d_inputs, *before = torch.func.vjp(network, flat, inputs, *state)[1](cotangents)
            return (d_flat, *before, d_inputs)

        def of_weights(flat: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            return network(flat, inputs, *state)

        return tuple(torch.func.vjp(of_weights, flat, *state)[1](cotangents))

    return function, (flat, *rest, signal) if real else (flat, *rest)


def _one_by_one(function: Any, info: Any, in_dims: Any, arguments: Any) -> Any:
    """One run per entry of the batched dimension: correct, not fast."""
    runs: list[Any] = []
    for index in range(info.batch_size):
        own = [x if dim is None else x.select(dim, index) for x, dim in zip(arguments, in_dims)]
        runs.append(function.apply(*own))
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
    """The inverse of `_tensors`."""
    remaining = iter(tensors)
    kept, drive = _pattern(net.architecture)

    def refill(fields: Any) -> Any:
        return type(fields)(*(next(remaining) if filled else None for filled in fields))

    layers: list[LayerTape] = []
    for _ in range(net.architecture.depth):
        course = Course(next(remaining), next(remaining) if net.cell.gated else None)
        layers.append(LayerTape(course, refill(kept), refill(drive) if is_derived(net.cell) else None))
    return Tape(0, steps, tuple(layers))


@lru_cache(maxsize=64)
def _pattern(architecture: Architecture) -> tuple[Any, Any]:
    """Which fields of what it keeps, and of its drive, a cell fills: learnt from one step of nothing."""
    flat = torch.empty(layout_of(architecture).size, device="meta")
    net = network_of(architecture, flat, Arithmetic(flat.dtype))
    symbols = flat.new_empty(1, 1, dtype=torch.int64)
    inputs = symbols if architecture.categorical else flat.new_empty(1, 1, architecture.input_size)
    weights = net.weights.layers[0]
    drive = external_drive(weights, inputs, None, FRESH)
    before = zero_state(architecture, net.cell, 1, flat)[0]
    after, activations = net.cell.forward(weights.step, row(drive, 0), before)
    kept = net.cell.slopes(before, after, activations)
    return tuple(type(fields)(*(x is not None for x in fields)) for fields in (kept, drive))  # type: ignore[return-value]  # there are two
