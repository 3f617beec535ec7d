"""A stand-in for a linearisation: only traffic, made up or drawn from a small linear model.

T: time steps, B: sequences, n: scored positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rnnewton.newton.problem import WeightTraffic


@dataclass
class FakeLinearization:
    chunks: list[list[WeightTraffic]]
    count: int

    def traffic(self, generator: torch.Generator | None = None) -> Iterator[list[WeightTraffic]]:
        yield from self.chunks


def dense(name: str, start: int, deltas: Tensor, inputs: Tensor) -> WeightTraffic:
    return WeightTraffic(name, start, deltas.shape[2], inputs.shape[2], inputs, deltas)


def lookup(name: str, start: int, deltas: Tensor, symbols: Tensor, width: int) -> WeightTraffic:
    return WeightTraffic(name, start, deltas.shape[2], width, symbols, deltas)


def one_hot(symbols: Tensor, width: int) -> Tensor:
    return torch.nn.functional.one_hot(symbols, width).double()


def gradients(weight: WeightTraffic) -> Tensor:
    """(B, rows, columns), the obvious way."""
    inputs = weight.inputs
    if not inputs.is_floating_point():
        inputs = one_hot(inputs, weight.columns).to(weight.deltas.dtype)
    return torch.einsum("tbr,tbc->brc", weight.deltas, inputs)


def random_net(
    seed: int = 0, length: int = 7, sequences: int = 5, dtype: torch.dtype = torch.float64
) -> list[WeightTraffic]:
    """A look-up and a recurrent matrix of three gates of 2 units that share their deltas, a bias, and an
    output."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    gates, units = draw(length, sequences, 6), draw(length, sequences, 2)
    symbols = torch.randint(0, 4, (length, sequences), generator=g)
    ones = torch.ones(length, sequences, 1, dtype=dtype)
    return [
        lookup("W_hi", 0, gates, symbols, 4),
        dense("W_hh", 24, gates, units),
        dense("B_h", 36, gates, ones),
        dense("W_oh", 42, draw(length, sequences, 3), units.roll(1, 0).contiguous()),
    ]


SIZE = 48
