"""The forward pass of a stack over one segment of time.

Legend: S steps of the segment, B sequences, h units, G gates, V inputs, O outputs.
Everything that does not depend on the state of its own layer is one product per weight over all S; only the
recurrence itself is a loop.
"""

from torch import Tensor

from rnnewton.recurrent.cells.base import Drive, State
from rnnewton.recurrent.network import LayerWeights, Network, carry, carry_onto
from rnnewton.recurrent.passes.tape import Buffers, Course, LayerTape, Tape, is_derived


def forward_segment(net: Network, inputs: Tensor, before: list[State], start: int, keep: bool = True) -> Tape:
    """Runs I(t) for the S steps from `start` on, from the states `before`. inputs: (S, B) or (S, B, V)."""
    layers: list[LayerTape] = []
    for index, weights in enumerate(net.weights.layers):
        below = layers[-1].course.out[1:] if layers else None
        source = inputs if net.architecture.reads_input(index) else below
        assert source is not None
        drive = external_drive(weights, source, below)
        layers.append(_forward_layer(net, weights, drive, before[index], keep))
    return Tape(start, start + inputs.shape[0], tuple(layers))


def external_drive(weights: LayerWeights, source: Tensor, below: Tensor | None) -> Drive:
    """What reaches the gates and chi from outside the recurrence, (S, B, ·)."""
    gates = carry(weights.inputs, source)
    if weights.below is not None and below is not None:
        gates = carry_onto(weights.below, gates, below)
    if weights.bias is not None:
        gates = gates + weights.bias
    return Drive(gates, None if weights.chi is None else carry(weights.chi, source))


def _forward_layer(net: Network, weights: LayerWeights, drive: Drive, before: State, keep: bool) -> LayerTape:
    steps = drive.gates.shape[0]
    course, kept = Course.starting(before, steps), Buffers(steps)
    recurrence = weights.step
    for step in range(steps):
        now = Drive(drive.gates[step], None if drive.chi is None else drive.chi[step])
        state, activations = net.cell.forward(recurrence, now, course.at(step))
        course.put(step + 1, state)
        if keep:
            kept.put(step, activations)
    return LayerTape(course, kept.rows, drive if keep and is_derived(net.cell) else None)


def read_out(net: Network, outs: list[Tensor]) -> Tensor:
    """The network's outputs z (S, B, O) before the softmax, from each layer's H_out (S, B, h)."""
    z: Tensor | None = None
    for weights, out in zip(net.weights.layers, outs):
        if weights.readout is not None:
            z = carry(weights.readout, out) if z is None else carry_onto(weights.readout, z, out)
    assert z is not None
    return z if net.weights.output_bias is None else z + net.weights.output_bias
