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
from rnnewton.recurrent.memory import Plan
from rnnewton.recurrent.network import Network, StackWeights, zero_state
from rnnewton.recurrent.passes.adjoint import Flow, Tap, adjoint_segment, zero_cotangent
from rnnewton.recurrent.passes.forward import Rooms, forward_segment, read_out
from rnnewton.recurrent.passes.tangent import r_read_out, tangent_segment
from rnnewton.recurrent.passes.tape import Course, Tape, is_derived
from rnnewton.recurrent.passes.workspace import FRESH, Workspace

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

    def __init__(self, net: Network, loss: Loss, block: Block, plan: Plan, space: Workspace) -> None:
        self.net, self.loss, self.block = net, loss, block
        self.segments, self.stored, self._space = plan.segments, plan.stored, space
        like = net.weights.layers[0].recurrent.weight
        width = block.inputs.shape[1]
        dtype = net.arithmetic.dtype
        state = block.state or zero_state(net.architecture, net.cell, width, like.new_empty(0, dtype=dtype))
        self._starts: list[list[State]] = []
        self._parts: list[Part] = []
        total = like.new_zeros((), dtype=torch.float64)
        tapes = FRESH if plan.stored else space
        for start, stop in plan.segments:
            self._starts.append(state)
            part, z = self._run(start, stop, state, tapes, keep=plan.stored)
            if z is not None and part.rows is not None:
                rows = part.rows
                total = total + loss.value(z, block.targets[rows[0] : rows[1]], block.scored.masked(*rows))
            state = part.tape.last() if plan.stored else _released(part.tape.last())
            if plan.stored:
                self._parts.append(part)
        self.loss_sum, self.last = total, state

    def gradient(self, into: Tensor) -> None:
        for flows in self._pull(self._derivative):
            for flow in flows:
                flow.add_to(into, self.net.arithmetic)

    def product(self, along: StackWeights, into: Tensor, structural: Structural) -> None:
        """into += Jᵀ (H_loss R(z) + mu S R(states))."""
        after = zero_cotangent(self._starts[0])
        for part, courses in self._tangents_backwards(along):
            d_z = self._curvature(along, part, courses)
            taps = [_tap(structural, course) for course in courses] if structural.coefficient else None
            inputs = self._inputs(part)
            pulled = adjoint_segment(self.net, part.tape, inputs, d_z, taps, after, space=self._space)
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
            courses = self._tangent(along, part, before, FRESH)
            outputs.append(r_read_out(self.net, along, part.tape.outs(), [x.out[1:] for x in courses]))
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

        return _joined_flows(list(self._pull(rows, space=FRESH))[::-1])

    def part(self, index: int, space: Workspace | None = None) -> Part:
        """A segment's activations: those stored, or made again."""
        if self.stored:
            return self._parts[index]
        return self._run(*self.segments[index], self._starts[index], space or self._space, keep=True)[0]

    def _tangents_backwards(self, along: StackWeights) -> Iterator[tuple[Part, list[Course]]]:
        """R(states) of every segment, the last first. Stored: one walk forward makes them all. Recomputed: it
        makes those between the segments, and each segment is then repeated (8 passes for 4)."""
        r_starts = [zero_cotangent(self._starts[0])]
        kept: list[list[Course]] = []
        last = len(self.segments) - 1
        for index in range(last + self.stored):
            space = self._space.part(f"segment {index}") if self.stored else self._space
            courses = self._tangent(along, self.part(index), r_starts[-1], space)
            if self.stored:
                kept.append(courses)
                r_starts.append([course.last for course in courses])
            else:
                r_starts.append(_released([course.last for course in courses]))
        for index in reversed(range(last + 1)):
            part = self.part(index)
            yield (
                part,
                kept[index] if self.stored else self._tangent(along, part, r_starts[index], self._space),
            )

    def _run(
        self, start: int, stop: int, state: list[State], tapes: Workspace, keep: bool
    ) -> tuple[Part, Tensor | None]:
        rooms = Rooms(tapes, FRESH if is_derived(self.net.cell) else self._space)
        tape = forward_segment(self.net, self.block.inputs[start:stop], state, start, keep, rooms)
        rows = self.block.scored.rows(start, stop)
        if rows is None:
            return Part(tape, None, None), None
        z = read_out(self.net, tape.outs(rows[0] - start))
        return Part(tape, rows, self.loss.prediction(z) if keep else None), z

    def _inputs(self, part: Part) -> Tensor:
        return self.block.inputs[part.tape.start : part.tape.stop]

    def _tangent(
        self, along: StackWeights, part: Part, before: list[State], space: Workspace
    ) -> list[Course]:
        rooms = Rooms(space, self._space)
        return tangent_segment(self.net, along, part.tape, self._inputs(part), before, rooms=rooms)

    def _curvature(self, along: StackWeights, part: Part, courses: list[Course]) -> tuple[int, Tensor] | None:
        """H_loss R(z) at the scored steps."""
        if part.rows is None or part.prediction is None:
            return None
        first = part.rows[0] - part.tape.start
        r_outs = [course.out[1 + first :] for course in courses]
        r_z = r_read_out(self.net, along, part.tape.outs(first), r_outs)
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
        space: Workspace | None = None,
    ) -> Iterator[list[Flow]]:
        """The walk back: the flows of every segment, last segment first."""
        after = zero_cotangent(self._starts[0])
        for index in reversed(range(len(self.segments))):
            part = self.part(index, space)
            inputs, room = self._inputs(part), space or self._space
            pulled = adjoint_segment(self.net, part.tape, inputs, rows(part), taps(part), after, space=room)
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
