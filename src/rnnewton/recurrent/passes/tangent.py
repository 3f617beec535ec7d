"""R-forward: the derivative of states and outputs along a direction v in the weights (thesis, 3.3).

Legend: S steps of the segment, B sequences, h units, G gates, V inputs, O outputs; r_x is R(x); `along` is v
cut into matrices, R(W).
"""

from torch import Tensor

from rnnewton.recurrent.cells.base import Drive, State
from rnnewton.recurrent.network import LayerWeights, Network, StackWeights, carry, carry_onto
from rnnewton.recurrent.passes.forward import Rooms
from rnnewton.recurrent.passes.tape import Course, LayerTape, Tape
from rnnewton.recurrent.passes.workspace import FRESH, Workspace


def tangent_segment(
    net: Network,
    along: StackWeights,
    tape: Tape,
    inputs: Tensor,
    before: list[State],
    r_inputs: Tensor | None = None,
    rooms: Rooms | None = None,
) -> list[Course]:
    """R(states) of every layer over the segment, from R(states before)."""
    rooms = rooms or Rooms(FRESH, FRESH)
    courses: list[Course] = []
    for index, (weights, r_weights) in enumerate(zip(net.weights.layers, along.layers)):
        own = tape.layers[index]
        below = tape.layers[index - 1].course.out[1:] if index else None
        r_below = courses[-1].out[1:] if courses else None
        direct = net.architecture.reads_input(index)
        source, r_source = (inputs, r_inputs) if direct else (below, r_below)
        assert source is not None
        drive = _r_drive(weights, r_weights, own, (source, r_source), (below, r_below), rooms.drives)
        course = Course.starting(before[index], inputs.shape[0], rooms.tape, f"R layer {index}")
        _tangent_layer(net, weights, own, drive, course)
        courses.append(course)
    return courses


def _r_drive(
    weights: LayerWeights,
    along: LayerWeights,
    tape: LayerTape,
    source: tuple[Tensor, Tensor | None],
    below: tuple[Tensor | None, Tensor | None],
    space: Workspace,
) -> Drive:
    """R(W) times what W carries, over all S at once, and W R(source) where the source is known already."""
    out_before = tape.course.out[:-1]
    gates = carry(along.inputs, source[0], space, "gates")
    gates = carry_onto(along.recurrent, gates, out_before if along.xi is None else tape.kept.m)
    if source[1] is not None:
        gates = carry_onto(weights.inputs, gates, source[1])
    if weights.below is not None and along.below is not None:
        assert below[0] is not None and below[1] is not None
        gates = carry_onto(along.below, gates, below[0])
        gates = carry_onto(weights.below, gates, below[1])
    if along.bias is not None:
        gates = gates + along.bias
    if along.xi is None or along.chi is None or weights.chi is None:
        return Drive(gates)
    chi = carry(along.chi, source[0], space, "chi")
    if source[1] is not None:
        chi = carry_onto(weights.chi, chi, source[1])
    return Drive(gates, chi, carry(along.xi, out_before, space, "xi"))


def _tangent_layer(
    net: Network, weights: LayerWeights, tape: LayerTape, drive: Drive, course: Course
) -> None:
    recurrence = weights.step
    for step in range(drive.gates.shape[0]):
        now = Drive(*(None if port is None else port[step] for port in drive))  # type: ignore[arg-type]  # gates is there
        course.put(step + 1, net.cell.tangent(recurrence, tape.moment(step), now, course.at(step)))


def r_read_out(net: Network, along: StackWeights, outs: list[Tensor], r_outs: list[Tensor]) -> Tensor:
    """R(z) = Σ_l R(W_oh) H + W_oh R(H), (S, B, O)."""
    z: Tensor | None = None
    for weights, r_weights, out, r_out in zip(net.weights.layers, along.layers, outs, r_outs):
        if weights.readout is not None and r_weights.readout is not None:
            z = carry(r_weights.readout, out) if z is None else carry_onto(r_weights.readout, z, out)
            z = carry_onto(weights.readout, z, r_out)
    assert z is not None
    return z if along.output_bias is None else z + along.output_bias
