"""Each network, slow and obvious: a loop over time and layers around the cell's `forward`.

Nothing here shares code with the passes but the cell's equations; tests differentiate this.
Legend: T steps, B sequences, V inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.blocks import Block
from rnnewton.recurrent.cells.base import Drive, State
from rnnewton.recurrent.losses import LOSSES
from rnnewton.recurrent.matrices import Arithmetic
from rnnewton.recurrent.network import network_of, zero_state


def reference_forward(
    architecture: Architecture, flat: Tensor, inputs: Tensor, state: list[State] | None = None
) -> tuple[Tensor, list[list[State]]]:
    """z (T, B, O) and the states of every layer after every step, from the flat vector of weights."""
    net = network_of(architecture, flat, Arithmetic(flat.dtype))
    now: list[Any] = list(state or zero_state(architecture, net.cell, inputs.shape[1], flat))
    outputs: list[Tensor] = []
    states: list[list[State]] = []
    for signal in inputs:
        z: Tensor | float = 0.0
        for index, weights in enumerate(net.weights.layers):

            def times(weight: Tensor, source: Tensor) -> Tensor:
                return source @ weight.T if source.is_floating_point() else weight.T[source]

            source = signal if architecture.reads_input(index) else now[index - 1].out
            gates = times(weights.inputs.weight, source)
            if weights.below is not None:
                gates = gates + times(weights.below.weight, now[index - 1].out)
            if weights.bias is not None:
                gates = gates + weights.bias
            chi = None if weights.chi is None else times(weights.chi.weight, source)
            now[index], _ = net.cell.forward(weights.step, Drive(gates, chi), now[index])
            if weights.readout is not None:
                z = z + times(weights.readout.weight, now[index].out)
        if net.weights.output_bias is not None:
            z = z + net.weights.output_bias
        assert isinstance(z, Tensor)
        outputs.append(z)
        states.append(list(now))
    return torch.stack(outputs), states


def reference_loss(architecture: Architecture, flat: Tensor, block: Block) -> Tensor:
    """The sum of the loss over the scored positions, not divided by n, in float64."""
    z, _ = reference_forward(architecture, flat, block.inputs, block.state)
    start, stop = block.scored.rows(0, block.inputs.shape[0]) or (0, 0)
    return LOSSES[architecture.loss].value(
        z[start:stop], block.targets[start:stop], block.scored.masked(start, stop)
    )
