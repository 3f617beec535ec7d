"""Where each weight lies in the flat vector (the table in DESIGN.md, "The flat vector").

Weights that carry one source into all gates of a cell stand next to each other, so that a slice of the flat
vector is the fused matrix.

Legend: h units of a layer, G gates of its cell (h, input, forget, output), V inputs, O outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from torch import Tensor

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import Cell, make_cell


@dataclass(frozen=True)
class Slice:
    """A block of the flat vector: rows = to, columns = from; one weight matrix, or all gates fused."""

    start: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.size].view(self.rows, self.columns)


@dataclass(frozen=True)
class Named:
    """One parameter of the module, in the thesis's letters."""

    name: str
    shape: tuple[int, ...]


class LayerLayout(NamedTuple):
    """The fused blocks of one layer, by what they join."""

    chi: Slice | None  # W_mi (h, V): input -> chi, factored cells
    xi: Slice | None  # W_mh (h, h): H(t-1) -> xi, factored cells
    inputs: Slice  # W_*i (G·h, V): input -> gates
    recurrent: Slice  # W_*h or W_*m (G·h, h): H(t-1) or M(t) -> gates
    below: Slice | None  # W_*l (G·h, h below): H_{l-1}(t) -> gates
    bias: Slice | None  # B_* (G·h, 1)
    readout: Slice | None  # W_oh (O, h): H(t) -> outputs


class Layout(NamedTuple):
    layers: tuple[LayerLayout, ...]
    output_bias: Slice | None  # B_o (O, 1)
    names: tuple[Named, ...]  # in parameter order
    size: int


@lru_cache(maxsize=64)
def layout_of(architecture: Architecture) -> Layout:
    cell = make_cell(architecture)
    start = 0

    def take(rows: int, columns: int) -> Slice:
        nonlocal start
        block = Slice(start, rows, columns)
        start += block.size
        return block

    layers: list[LayerLayout] = []
    for layer, width in enumerate(architecture.hidden):
        gates, source = len(cell.gates) * width, architecture.source_size(layer)
        layers.append(
            LayerLayout(
                chi=take(width, source) if cell.factored else None,
                xi=take(width, width) if cell.factored else None,
                inputs=take(gates, source),
                recurrent=take(gates, width),
                below=take(gates, architecture.hidden[layer - 1]) if architecture.has_below(layer) else None,
                bias=take(gates, 1) if has_bias(architecture, cell) else None,
                readout=take(architecture.output_size, width) if architecture.has_readout(layer) else None,
            )
        )
    output_bias = take(architecture.output_size, 1) if architecture.output_bias else None
    names = tuple(_names(architecture, cell))
    assert start == sum(prod(named.shape) for named in names)
    return Layout(tuple(layers), output_bias, names, start)


def has_bias(architecture: Architecture, cell: Cell) -> bool:
    return cell.biased if architecture.bias is None else architecture.bias


def _names(architecture: Architecture, cell: Cell) -> Iterator[Named]:
    def each_gate(layer: int, letter: str, *columns: int) -> Iterator[Named]:
        for gate in cell.gates:
            name = f"W_h{letter}" if gate == "h" else f"W_{gate}_{letter}"
            yield Named(f"layers.{layer}.{name}", (architecture.hidden[layer], *columns))

    for layer, width in enumerate(architecture.hidden):
        source = architecture.source_size(layer)
        if cell.factored:
            yield Named(f"layers.{layer}.W_mi", (width, source))
            yield Named(f"layers.{layer}.W_mh", (width, width))
        yield from each_gate(layer, "i", source)
        yield from each_gate(layer, "m" if cell.factored else "h", width)
        if architecture.has_below(layer):
            yield from each_gate(layer, "l", architecture.hidden[layer - 1])
        if has_bias(architecture, cell):
            for gate in cell.gates:
                yield Named(f"layers.{layer}.B_{gate}", (width,))
        if architecture.has_readout(layer):
            yield Named(f"layers.{layer}.W_oh", (architecture.output_size, width))
    if architecture.output_bias:
        yield Named("outputs.B_o", (architecture.output_size,))
