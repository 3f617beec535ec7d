"""The forward pass of a stack over one segment of time.

Legend: S steps of the segment, B sequences, h units, G gates, V inputs, O outputs.
Everything that does not depend on the state of its own layer is one product per weight over all S; only the
recurrence itself is a loop.
"""

from typing import NamedTuple

from torch import Tensor

from rnnewton.recurrent.cells.base import Drive, State
from rnnewton.recurrent.network import LayerWeights, Network, carry, carry_onto
from rnnewton.recurrent.passes.tape import Buffers, Course, LayerTape, Tape, is_derived
from rnnewton.recurrent.passes.workspace import FRESH, Workspace


class Rooms(NamedTuple):
    """Where a forward pass writes: its tape stays, its drives do not."""

    tape: Workspace
    drives: Workspace


def forward_segment(
    net: Network,
    inputs: Tensor,
    before: list[State],
    start: int,
    keep: bool = True,
    rooms: Rooms | None = None,
) -> Tape:
    """Runs I(t) for the S steps from `start` on, from the states `before`. inputs: (S, B) or (S, B, V)."""
    rooms = rooms or Rooms(FRESH, FRESH)
    layers: list[LayerTape] = []
    for index, weights in enumerate(net.weights.layers):
        below = layers[-1].course.out[1:] if layers else None
        source = inputs if net.architecture.reads_input(index) else below
        assert source is not None
        drive = external_drive(weights, source, below, rooms.drives)
        layers.append(_forward_layer(net, index, drive, before[index], keep, rooms.tape))
    return Tape(start, start + inputs.shape[0], tuple(layers))


def external_drive(weights: LayerWeights, source: Tensor, below: Tensor | None, space: Workspace) -> Drive:
    """What reaches the gates and chi from outside the recurrence, (S, B, ·)."""
    gates = carry(weights.inputs, source, space, "gates")
    if weights.below is not None and below is not None:
        gates = carry_onto(weights.below, gates, below)
    if weights.bias is not None:
        gates = gates + weights.bias
    return Drive(gates, None if weights.chi is None else carry(weights.chi, source, space, "chi"))


def _forward_layer(
    net: Network, index: int, drive: Drive, before: State, keep: bool, space: Workspace
) -> LayerTape:
    steps, name, cell = drive.gates.shape[0], f"layer {index}", net.cell
    course, kept = Course.starting(before, steps, space, name), Buffers(steps, space, f"{name} kept")
    recurrence = net.weights.layers[index].step
    for step in range(steps):
        now = Drive(drive.gates[step], None if drive.chi is None else drive.chi[step])
        last = course.at(step)
        state, activations = cell.forward(recurrence, now, last)
        course.put(step + 1, state)
        if keep:
            kept.put(step, cell.slopes(last, state, activations))
    return LayerTape(course, kept.rows, drive if keep and is_derived(cell) else None)


def read_out(net: Network, outs: list[Tensor]) -> Tensor:
    """The network's outputs z (S, B, O) before the softmax, from each layer's H_out (S, B, h)."""
    z: Tensor | None = None
    for weights, out in zip(net.weights.layers, outs):
        if weights.readout is not None:
            z = carry(weights.readout, out) if z is None else carry_onto(weights.readout, z, out)
    assert z is not None
    return z if net.weights.output_bias is None else z + net.weights.output_bias
