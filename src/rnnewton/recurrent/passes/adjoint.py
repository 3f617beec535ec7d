"""Back-propagation through time over one segment, from cotangents of the outputs and of the states.

Legend: S steps of the segment, B sequences, h units, G gates, V inputs, O outputs; d_x is the derivative of
the error by x.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.cells.base import After, Drive, Hidden, HiddenCell, State
from rnnewton.recurrent.layout import LayerLayout, Slice
from rnnewton.recurrent.matrices import Arithmetic
from rnnewton.recurrent.network import LayerWeights, Network, back
from rnnewton.recurrent.passes.tape import Buffers, LayerTape, Tape, scatter_rows
from rnnewton.recurrent.passes.workspace import FRESH, Workspace


class Tap(NamedTuple):
    """Cotangents that a layer's states receive from outside, each (S, B, h)."""

    out: Tensor | None = None
    zeta: Tensor | None = None
    cell: Tensor | None = None


class Flow(NamedTuple):
    """What flows through one weight matrix: its gradient is dᵀ source, summed over S and B."""

    block: Slice
    source: Tensor | None  # (S, B, columns); symbols (S, B); None for a bias, whose input is 1
    delta: Tensor  # (S, B, rows)

    def add_to(self, into: Tensor, arithmetic: Arithmetic) -> None:
        gradient, delta = self.block.of(into), self.delta.flatten(0, 1)
        if self.source is None:
            gradient.view(-1).add_(delta.sum(0))
        elif self.source.is_floating_point():
            arithmetic.outer(gradient, delta, self.source.flatten(0, 1))
        else:
            columns = torch.ops.aten.embedding_dense_backward(
                delta, self.source.flatten(), self.block.columns, -1, False
            )
            gradient.add_(columns.T)


class Pulled(NamedTuple):
    flows: list[Flow]
    before: list[State]  # cotangents of the states before the segment
    inputs: Tensor | None  # (S, B, V) cotangent of real inputs, if it was asked for


def adjoint_segment(
    net: Network,
    tape: Tape,
    inputs: Tensor,
    d_z: tuple[int, Tensor] | None,
    taps: list[Tap] | None,
    after: list[State],
    want_inputs: bool = False,
    space: Workspace = FRESH,
) -> Pulled:
    """`d_z`: the first step of the segment that is scored, and the cotangent (rows, B, O) from there on."""
    flows: list[Flow] = []
    before: list[State] = []
    d_inputs: Tensor | None = None
    d_below: Tensor | None = None  # what the layer above sends down, (S, B, h)
    for index in reversed(range(len(tape.layers))):
        weights, own, layout = net.weights.layers[index], tape.layers[index], net.layout.layers[index]
        tap = taps[index] if taps else Tap()
        d_out = _sum(_from_outputs(weights, own, d_z, space), tap.out, d_below)
        buffers = Buffers(inputs.shape[0], space, f"d layer {index}")
        drive, d_before = _adjoint_layer(net, weights, own, tap._replace(out=d_out), after[index], buffers)
        before.append(d_before)
        below = tape.layers[index - 1].course.out[1:] if index else None
        direct = net.architecture.reads_input(index)
        source = inputs if direct else below
        assert source is not None
        flows += _flows(layout, own, drive, source, below, d_z)
        d_source = _to_source(weights, drive) if (want_inputs and direct) or not direct else None
        d_below = back(weights.below, drive.gates) if weights.below is not None else None
        if direct:
            d_inputs = _sum(d_inputs, d_source)
        else:
            d_below = d_source
    if net.layout.output_bias is not None and d_z is not None:
        flows.append(Flow(net.layout.output_bias, None, d_z[1]))
    return Pulled(flows, before[::-1], d_inputs)


def _adjoint_layer(
    net: Network, weights: LayerWeights, tape: LayerTape, tap: Tap, after: State, drives: Buffers
) -> tuple[Drive, State]:
    recurrence = weights.step
    d_state: Any = after
    for step in reversed(range(drives.steps)):
        d_out = d_state.out if tap.out is None else d_state.out + tap.out[step]
        d_cell = d_state.cell if isinstance(d_state, HiddenCell) else None
        if tap.cell is not None and d_cell is not None:
            d_cell = d_cell + tap.cell[step]
        d_zeta = None if tap.zeta is None else tap.zeta[step]
        drive, d_state = net.cell.adjoint(recurrence, tape.moment(step), After(d_out, d_cell, d_zeta))
        drives.put(step, drive)
    return drives.rows, d_state


def _from_outputs(
    weights: LayerWeights, tape: LayerTape, d_z: tuple[int, Tensor] | None, space: Workspace
) -> Tensor | None:
    """W_ohᵀ d_z, (S, B, h), zero at the steps that are not scored."""
    if d_z is None or weights.readout is None:
        return None
    rows = back(weights.readout, d_z[1], space, "d out")
    return scatter_rows(tape.course.out, tape.course.out.shape[0] - 1, d_z[0], rows)


def _to_source(weights: LayerWeights, drive: Drive) -> Tensor:
    """The cotangent of what the layer takes for its input."""
    d_source = back(weights.inputs, drive.gates)
    if weights.chi is not None and drive.chi is not None:
        d_source = d_source + back(weights.chi, drive.chi)
    return d_source


def _flows(
    layout: LayerLayout,
    tape: LayerTape,
    drive: Drive,
    source: Tensor,
    below: Tensor | None,
    d_z: tuple[int, Tensor] | None,
) -> list[Flow]:
    out_before, out_after = tape.course.out[:-1], tape.course.out[1:]
    flows = [Flow(layout.inputs, source, drive.gates)]
    if layout.chi is not None and layout.xi is not None and drive.chi is not None and drive.xi is not None:
        flows.append(Flow(layout.chi, source, drive.chi))
        flows.append(Flow(layout.xi, out_before, drive.xi))
        flows.append(Flow(layout.recurrent, tape.kept.m, drive.gates))
    else:
        flows.append(Flow(layout.recurrent, out_before, drive.gates))
    if layout.below is not None:
        flows.append(Flow(layout.below, below, drive.gates))
    if layout.bias is not None:
        flows.append(Flow(layout.bias, None, drive.gates))
    if layout.readout is not None and d_z is not None:
        start, rows = d_z
        flows.append(Flow(layout.readout, out_after[start : start + rows.shape[0]], rows))
    return flows


def zero_cotangent(states: list[State]) -> list[State]:
    return [
        HiddenCell(torch.zeros_like(state.out), torch.zeros_like(state.cell))
        if isinstance(state, HiddenCell)
        else Hidden(torch.zeros_like(state.out))
        for state in states
    ]


def _sum(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total
