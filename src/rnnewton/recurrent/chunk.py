"""One block of sequences, linearised: the forward pass once, then gradients and products, all as plain sums.

The caller divides by n. Activations are stored (one segment whose tape is kept) or recomputed (many segments
of which only the states between them are kept).
Legend: T steps, B sequences, h units, V inputs, O outputs; z (T, B, O) outputs before the softmax.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from rnnewton.recurrent.blocks import Block
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State
from rnnewton.recurrent.losses import Loss
from rnnewton.recurrent.network import Network, StackWeights, zero_state
from rnnewton.recurrent.passes.adjoint import Flow, Tap, adjoint_segment, zero_cotangent
from rnnewton.recurrent.passes.forward import forward_segment, read_out
from rnnewton.recurrent.passes.segments import Segments
from rnnewton.recurrent.passes.tangent import r_read_out, tangent_segment
from rnnewton.recurrent.passes.tape import Course, Tape

FORMS = ("matching", "squared")
TAPS = ("output", "cell")


class Part(NamedTuple):
    """One segment with its activations at hand."""

    tape: Tape
    rows: tuple[int, int] | None  # its scored steps, in steps of the whole block
    prediction: Tensor | None  # (rows, B, O), what the loss needs of the outputs


class Structural(NamedTuple):
    """mu and what it penalises (DESIGN.md, "Units")."""

    coefficient: float
    form: str = "matching"
    tap: str = "output"


def untapped(part: Part) -> None:
    """No cotangents at the states."""


class EagerChunk:
    """The reference for every faster chunk."""

    def __init__(self, net: Network, loss: Loss, block: Block, segments: Segments, stored: bool) -> None:
        self.net, self.loss, self.block = net, loss, block
        self.segments, self.stored = segments, stored
        like = net.weights.layers[0].recurrent.weight
        width = block.inputs.shape[1]
        dtype = net.arithmetic.dtype
        state = block.state or zero_state(net.architecture, net.cell, width, like.new_empty(0, dtype=dtype))
        self._starts: list[list[State]] = []
        self._parts: list[Part] = []
        total = like.new_zeros((), dtype=torch.float64)
        for start, stop in segments:
            self._starts.append(state)
            part, z = self._run(start, stop, state, keep=stored)
            if z is not None and part.rows is not None:
                rows = part.rows
                total = total + loss.value(z, block.targets[rows[0] : rows[1]], block.scored.masked(*rows))
            state = part.tape.last() if stored else _released(part.tape.last())
            if stored:
                self._parts.append(part)
        self.loss_sum, self.last = total, state

    def gradient(self, into: Tensor) -> None:
        for flows in self._pull(self._derivative):
            for flow in flows:
                flow.add_to(into, self.net.arithmetic)

    def product(self, along: StackWeights, into: Tensor, structural: Structural) -> None:
        """into += Jᵀ (H_loss R(z) + mu S R(states)). Recomputed: one walk forward for R(states) between the
        segments, one walk back that repeats each segment (8 passes for 4)."""
        r_starts = [zero_cotangent(self._starts[0])]
        last = len(self.segments) - 1
        for index in range(last):
            courses = self._tangent(along, self.part(index), r_starts[-1])
            r_starts.append([_released([course.last])[0] for course in courses])
        after = zero_cotangent(self._starts[0])
        for index in reversed(range(last + 1)):
            part = self.part(index)
            courses = self._tangent(along, part, r_starts.pop())
            d_z = self._curvature(along, part, courses)
            taps = [_tap(structural, course) for course in courses] if structural.coefficient else None
            pulled = adjoint_segment(self.net, part.tape, self._inputs(part), d_z, taps, after)
            for flow in pulled.flows:
                flow.add_to(into, self.net.arithmetic)
            after = pulled.before

    def jvp(self, along: StackWeights) -> tuple[Tensor, list[State]]:
        """R(z) (T, B, O) and R(states), a NamedTuple of (T, B, h) per layer."""
        before = zero_cotangent(self._starts[0])
        outputs: list[Tensor] = []
        states: list[list[Course]] = []
        for index in range(len(self.segments)):
            part = self.part(index)
            courses = self._tangent(along, part, before)
            outs = [layer.course.out[1:] for layer in part.tape.layers]
            outputs.append(r_read_out(self.net, along, outs, [course.out[1:] for course in courses]))
            states.append(courses)
            before = [course.last for course in courses]
        joined = [_join([courses[layer] for courses in states]) for layer in range(len(before))]
        return torch.cat(outputs), joined

    def vjp(self, outputs: Tensor | None, states: list[Tap] | None, into: Tensor) -> None:
        """into += Jᵀ of cotangents (T, B, O) of all outputs and (T, B, h) of the states."""

        def rows(part: Part) -> tuple[int, Tensor] | None:
            return None if outputs is None else (0, outputs[part.tape.start : part.tape.stop])

        def taps(part: Part) -> list[Tap] | None:
            span = slice(part.tape.start, part.tape.stop)
            return states and [Tap(*(None if x is None else x[span] for x in tap)) for tap in states]

        for flows in self._pull(rows, taps):
            for flow in flows:
                flow.add_to(into, self.net.arithmetic)

    def flows(self, generator: Generator | None) -> list[Flow]:
        """What flows through every weight over all T: at targets drawn from the model; None: at the true."""

        def rows(part: Part) -> tuple[int, Tensor] | None:
            return self._derivative(part) if generator is None else self._sampled(part, generator)

        return _joined_flows(list(self._pull(rows))[::-1])

    def part(self, index: int) -> Part:
        if self.stored:
            return self._parts[index]
        return self._run(*self.segments[index], self._starts[index], keep=True)[0]

    def _run(self, start: int, stop: int, state: list[State], keep: bool) -> tuple[Part, Tensor | None]:
        tape = forward_segment(self.net, self.block.inputs[start:stop], state, start, keep)
        rows = self.block.scored.rows(start, stop)
        if rows is None:
            return Part(tape, None, None), None
        outs = [layer.course.out[1:][rows[0] - start : rows[1] - start] for layer in tape.layers]
        z = read_out(self.net, outs)
        return Part(tape, rows, self.loss.prediction(z) if keep else None), z

    def _inputs(self, part: Part) -> Tensor:
        return self.block.inputs[part.tape.start : part.tape.stop]

    def _tangent(self, along: StackWeights, part: Part, before: list[State]) -> list[Course]:
        return tangent_segment(self.net, along, part.tape, self._inputs(part), before)

    def _curvature(self, along: StackWeights, part: Part, courses: list[Course]) -> tuple[int, Tensor] | None:
        """H_loss R(z) at the scored steps."""
        if part.rows is None or part.prediction is None:
            return None
        first = part.rows[0] - part.tape.start
        outs = [layer.course.out[1 + first :] for layer in part.tape.layers]
        r_z = r_read_out(self.net, along, outs, [course.out[1 + first :] for course in courses])
        return first, self.loss.hessian(part.prediction, r_z, self.block.scored.masked(*part.rows))

    def _derivative(self, part: Part) -> tuple[int, Tensor] | None:
        if part.rows is None or part.prediction is None:
            return None
        start, stop = part.rows
        mask = self.block.scored.masked(start, stop)
        return start - part.tape.start, self.loss.derivative(
            part.prediction, self.block.targets[start:stop], mask
        )

    def _sampled(self, part: Part, generator: Generator) -> tuple[int, Tensor] | None:
        if part.rows is None or part.prediction is None:
            return None
        mask = self.block.scored.masked(*part.rows)
        drawn = self.loss.sample(part.prediction, generator)
        return part.rows[0] - part.tape.start, drawn if mask is None else drawn * mask.unsqueeze(-1)

    def _pull(
        self,
        rows: Callable[[Part], tuple[int, Tensor] | None],
        taps: Callable[[Part], list[Tap] | None] = untapped,
    ) -> Iterator[list[Flow]]:
        """The walk back: the flows of every segment, last segment first."""
        after = zero_cotangent(self._starts[0])
        for index in reversed(range(len(self.segments))):
            part = self.part(index)
            pulled = adjoint_segment(self.net, part.tape, self._inputs(part), rows(part), taps(part), after)
            after = pulled.before
            yield pulled.flows


def _tap(structural: Structural, r: Course) -> Tap:
    """mu S R(states). matching: S = 1 − H² at zeta, and (1 − H²) R(zeta) is R(H_out) itself (thesis, 3.3)."""
    if structural.tap == "cell":
        assert r.cell is not None
        return Tap(cell=structural.coefficient * r.cell[1:])
    penalty = structural.coefficient * r.out[1:]
    return Tap(zeta=penalty) if structural.form == "matching" else Tap(out=penalty)


def _released(states: list[State]) -> list[State]:
    """Copies that do not keep the whole course alive."""
    return [type(state)(*(x.clone() for x in state)) for state in states]


def _join(courses: list[Course]) -> State:
    out = torch.cat([course.out[1:] for course in courses])
    if courses[0].cell is None:
        return Hidden(out)
    return HiddenCell(out, torch.cat([course.cell[1:] for course in courses if course.cell is not None]))


def _joined_flows(segments: list[list[Flow]]) -> list[Flow]:
    """Segments in time order; a weight scored only at the end flows in the last one alone."""
    by_block: dict[int, list[Flow]] = {}
    for flows in segments:
        for flow in flows:
            by_block.setdefault(flow.block.start, []).append(flow)
    return [
        same[0]
        if len(same) == 1
        else Flow(
            same[0].block,
            None
            if same[0].source is None
            else torch.cat([flow.source for flow in same if flow.source is not None]),
            torch.cat([flow.delta for flow in same]),
        )
        for _, same in sorted(by_block.items())
    ]
