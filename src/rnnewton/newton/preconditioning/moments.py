"""Sums over the sequences of a chunk that the preconditioners need: second moments of per-sequence
gradients, and factors.

T: time steps, B: sequences, rows: outputs of the weight, columns: its inputs (symbols, for a look-up).
deltas (T, B, rows), inputs (T, B, columns) or (T, B) symbols; a sequence's gradient is G_b = Σ_t d_tb a_tbᵀ
(rows, columns).

A gradient per sequence is B times the weight itself, so the chunk is walked in slabs of sequences; a
look-up's gradient is summed by (sequence, symbol) pairs that do occur, never over a one-hot axis. Sums are
taken in a fixed order: the same bits on every run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from rnnewton.newton.problem import WeightTraffic

SLAB_BYTES = 16 << 20  # of per-sequence gradients held at a time; beyond the caches' size more does not help


def slabs(deltas: Tensor, largest: int, slab_bytes: int = SLAB_BYTES) -> Iterator[slice]:
    """Ranges of sequences whose per-sequence arrays of `largest` elements fit into `slab_bytes`."""
    sequences = deltas.shape[1]
    step = max(1, slab_bytes // (max(1, largest) * deltas.element_size()))
    for first in range(0, sequences, step):
        yield slice(first, min(first + step, sequences))


def sequence_elements(weight: WeightTraffic) -> int:
    """Elements held per sequence while its gradient is taken: a look-up holds at most a row per position."""
    lookup = not weight.inputs.is_floating_point()
    return weight.rows * (weight.deltas.shape[0] if lookup else weight.columns)


def sequence_squares(
    deltas: Tensor, inputs: Tensor, rows: Tensor | None, columns: Tensor | None, width: int
) -> Tensor:
    """Σ_b (Q_rowsᵀ G_b Q_columns)² of a dense weight or of a look-up of `width` symbols: (rows, width)."""
    if inputs.is_floating_point():
        return squared_gradients(deltas, inputs, rows, columns)
    return squared_lookup_gradients(deltas, inputs, width, rows)


def squared_gradients(deltas: Tensor, inputs: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Σ_b (Q_rowsᵀ G_b Q_columns)², elementwise: (rows, columns). A basis of None is the identity."""
    length, _, height = deltas.shape
    width = inputs.shape[2]
    rotate_first = length * (height * height + width * width) <= height * width * (height + width)
    if rotate_first:
        deltas = deltas if rows is None else deltas @ rows
        inputs = inputs if columns is None else inputs @ columns
    if rotate_first and length == 1:  # each gradient has rank one: its squares are products of squares
        return deltas[0].square().mT @ inputs[0].square()
    gradients = torch.bmm(deltas.permute(1, 2, 0), inputs.transpose(0, 1))
    if not rotate_first:
        gradients = gradients if columns is None else gradients @ columns
        gradients = gradients if rows is None else rows.mT @ gradients
    return gradients.square_().sum(0)


def squared_lookup_gradients(deltas: Tensor, symbols: Tensor, width: int, rows: Tensor | None) -> Tensor:
    """The same for a look-up of `width` symbols: (rows, width). Its column v of G_b is the sum of d_tb over
    b's symbols v."""
    height = deltas.shape[2]
    sequences = symbols.shape[1]
    sequence = torch.arange(sequences, device=symbols.device)
    pair, order = torch.sort((symbols * sequences + sequence).flatten(), stable=True)
    pair, counts = torch.unique_consecutive(pair, return_counts=True)
    sums = functional.embedding_bag(
        order, deltas.reshape(-1, height), torch.cumsum(counts, 0) - counts, mode="sum"
    )
    squares = (sums if rows is None else sums @ rows).square_()
    symbol, counts = torch.unique_consecutive(pair // sequences, return_counts=True)
    everyone = torch.arange(len(pair), device=symbols.device)
    by_symbol = functional.embedding_bag(everyone, squares, torch.cumsum(counts, 0) - counts, mode="sum")
    result = deltas.new_zeros(width, height)
    result[symbol] = by_symbol
    return result.mT


def symbol_counts(symbols: Tensor, width: int) -> Tensor:
    """How often each of `width` symbols occurs: (width,) float64."""
    return torch.bincount(symbols.flatten(), minlength=width).double()


def outer_products(values: Tensor) -> Tensor:
    """Σ over positions of x xᵀ: (features, features) from (T, B, features)."""
    flat = values.reshape(-1, values.shape[-1])
    return flat.mT @ flat
