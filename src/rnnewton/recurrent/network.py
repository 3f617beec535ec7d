"""A network ready to run: architecture, layout and the matrices cut from one flat vector.

Legend: T steps, B sequences, h units, G gates, V inputs, O outputs; N = T·B rows of a batched product.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import Cell, make_cell
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State, Weights
from rnnewton.recurrent.layout import Layout, Slice, layout_of
from rnnewton.recurrent.matrices import AnyMatrix, Arithmetic


class LayerWeights(NamedTuple):
    """The fused matrices of one layer; names and shapes as in `LayerLayout`."""

    chi: AnyMatrix | None
    xi: AnyMatrix | None
    inputs: AnyMatrix
    recurrent: AnyMatrix
    below: AnyMatrix | None
    bias: Tensor | None  # (G·h,)
    readout: AnyMatrix | None

    @property
    def step(self) -> Weights:
        return Weights(self.recurrent, self.xi)


class StackWeights(NamedTuple):
    layers: tuple[LayerWeights, ...]
    output_bias: Tensor | None  # (O,)


class Network(NamedTuple):
    architecture: Architecture
    cell: Cell
    layout: Layout
    arithmetic: Arithmetic
    weights: StackWeights


def network_of(architecture: Architecture, flat: Tensor, arithmetic: Arithmetic) -> Network:
    layout = layout_of(architecture)
    return Network(architecture, make_cell(architecture), layout, arithmetic, cut(layout, flat, arithmetic))


def cut(layout: Layout, flat: Tensor, arithmetic: Arithmetic) -> StackWeights:
    """The matrices of a flat vector of weights, or of a direction in their space."""

    def matrix(block: Slice | None) -> AnyMatrix | None:
        return None if block is None else arithmetic.matrix(block.of(flat))

    def vector(block: Slice | None) -> Tensor | None:
        return None if block is None else block.of(flat).view(-1)

    layers = tuple(
        LayerWeights(
            chi=matrix(layer.chi),
            xi=matrix(layer.xi),
            inputs=arithmetic.matrix(layer.inputs.of(flat)),
            recurrent=arithmetic.matrix(layer.recurrent.of(flat)),
            below=matrix(layer.below),
            bias=vector(layer.bias),
            readout=matrix(layer.readout),
        )
        for layer in layout.layers
    )
    return StackWeights(layers, vector(layout.output_bias))


def zero_state(architecture: Architecture, cell: Cell, sequences: int, like: Tensor) -> list[State]:
    def zeros(width: int) -> Tensor:
        return like.new_zeros(sequences, width)

    if cell.gated:
        return [HiddenCell(zeros(width), zeros(width)) for width in architecture.hidden]
    return [Hidden(zeros(width)) for width in architecture.hidden]


def carry(matrix: AnyMatrix, source: Tensor) -> Tensor:
    """(T, B, columns) -> (T, B, rows), as one product; symbols (T, B) are looked up in W's columns."""
    if not source.is_floating_point():
        return embedding(source, matrix.weight.T).to(torch.promote_types(matrix.weight.dtype, torch.float32))
    return matrix.carry(source.flatten(0, 1)).view(*source.shape[:2], -1)


def carry_onto(matrix: AnyMatrix, base: Tensor, source: Tensor) -> Tensor:
    """base (T, B, rows) + W source, as one product."""
    return matrix.onto(base.flatten(0, 1), source.flatten(0, 1)).view(base.shape)


def back(matrix: AnyMatrix, d: Tensor) -> Tensor:
    """(T, B, rows) -> (T, B, columns), as one product."""
    return matrix.back(d.flatten(0, 1)).view(*d.shape[:2], -1)
