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
from rnnewton.recurrent.matrices import Arithmetic, Matrix
from rnnewton.recurrent.passes.workspace import FRESH, Fresh, Workspace


class LayerWeights(NamedTuple):
    """The fused matrices of one layer; names and shapes as in `LayerLayout`."""

    chi: Matrix | None
    xi: Matrix | None
    inputs: Matrix
    recurrent: Matrix
    below: Matrix | None
    bias: Tensor | None  # (G·h,)
    readout: Matrix | None

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

    def matrix(block: Slice | None) -> Matrix | None:
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


def carry(matrix: Matrix, source: Tensor, space: Workspace = FRESH, name: str = "") -> Tensor:
    """(T, B, columns) -> (T, B, rows), as one product; symbols (T, B) are looked up in W's columns."""
    rows, into = matrix.weight.shape[0], None
    if not source.is_floating_point():
        table = matrix.weight.T.to(torch.promote_types(matrix.weight.dtype, torch.float32)).contiguous()
        if isinstance(space, Fresh):
            return embedding(source, table)
        into = space.take(name, table, source.numel(), rows)
        return torch.index_select(table, 0, source.flatten(), out=into).view(*source.shape, rows)
    flat = source.flatten(0, 1)
    if not isinstance(space, Fresh):
        into = space.take(name, source, len(flat), rows)
    return matrix.carry(flat, into).view(*source.shape[:2], rows)


def carry_onto(matrix: Matrix, base: Tensor, source: Tensor) -> Tensor:
    """base (T, B, rows) + W source, as one product; base may be overwritten."""
    return matrix.onto(base.flatten(0, 1), source.flatten(0, 1)).view(base.shape)


def back(matrix: Matrix, d: Tensor, space: Workspace = FRESH, name: str = "") -> Tensor:
    """(T, B, rows) -> (T, B, columns), as one product."""
    flat, columns = d.flatten(0, 1), matrix.weight.shape[1]
    into = None if isinstance(space, Fresh) else space.take(name, d, len(flat), columns)
    return matrix.back(flat, into).view(*d.shape[:2], columns)
