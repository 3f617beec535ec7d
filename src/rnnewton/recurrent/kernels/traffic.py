"""What flows through every weight of a native chunk, in the order of the flat vector.

Legend: T steps, B sequences, h units, G gates, O outputs.
"""

import torch
from torch import Generator, Tensor

from rnnewton.recurrent.kernels.chunk import NativeChunk
from rnnewton.recurrent.layout import Slice, layout_of
from rnnewton.recurrent.losses import LOSSES, masked
from rnnewton.recurrent.passes.adjoint import Flow


def flows(chunk: NativeChunk, generator: Generator | None) -> list[Flow]:
    """At targets drawn from the model, or at the true ones (None)."""
    block, layout = chunk.block, layout_of(chunk.architecture)
    start, stop, d_scored = _output_deltas(chunk, generator)
    d_outputs = d_scored.new_zeros(*block.inputs.shape[:2], d_scored.shape[-1])
    d_outputs[start:stop] = d_scored
    layers = chunk.deltas(d_outputs)
    found: list[Flow] = []

    def add(weight: Slice | None, source: Tensor | None, delta: Tensor | None) -> None:
        if weight is not None and delta is not None:
            found.append(Flow(weight, source, delta))

    for index, (slices, here) in enumerate(zip(layout.layers, layers, strict=True)):
        below = layers[index - 1].out[1:] if index else None
        signal = block.inputs if chunk.architecture.reads_input(index) else below
        add(slices.chi, signal, here.chi)
        add(slices.xi, here.out[:-1], here.xi)
        add(slices.inputs, signal, here.gates)
        add(slices.recurrent, here.out[:-1] if here.m is None else here.m, here.gates)
        add(slices.below, below, here.gates)
        add(slices.bias, None, here.gates)
        add(slices.readout, here.out[1:][start:stop], d_scored)
    add(layout.output_bias, None, d_scored)
    return found


def _output_deltas(chunk: NativeChunk, generator: Generator | None) -> tuple[int, int, Tensor]:
    """The scored steps, and the cotangents of their outputs."""
    block, loss = chunk.block, LOSSES[chunk.architecture.loss]
    start, stop = block.scored.rows(0, block.inputs.shape[0]) or (0, 0)
    mask, prediction = block.scored.masked(start, stop), chunk.predictions()[start:stop]
    if generator is None:
        return start, stop, loss.derivative(prediction, block.targets[start:stop], mask)
    # Where nothing of a step is scored its prediction was never made: any finite one will do.
    drawn = loss.sample(torch.nan_to_num(prediction), generator)
    return start, stop, masked(drawn, mask)
