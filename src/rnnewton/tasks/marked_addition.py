"""Marked addition (thesis, chapter 2.2; Hochreiter & Schmidhuber, 1997): add the two marked numbers of a
long sequence.

T  length of a sequence      B  sequences side by side
inputs (T, B, 2): a number, uniform in [0, 1), and a mark that is 1 at two steps and 0 elsewhere
targets (T, B, 1): the sum of the two marked numbers, at every step; only the last step is scored (at="last")

The first mark lies in the first tenth of the sequence and the second between there and its half (Sutskever's
form), so that the sum has to be kept for at least T / 2 steps. The variance of the sum is 1/6: always
answering the mean scores 0.167.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MEAN_ERROR = 1 / 6  # of always answering the mean
SOLVED = 0.002  # a held-out mean squared error below this counts as solved

Chunk = tuple[Tensor, Tensor, str]  # inputs, targets, "last"


@dataclass(frozen=True)
class MarkedAddition:
    """The problem at one length; every batch is a function of (seed, index) alone."""

    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"marked addition needs at least 2 steps to mark, not {self.length}")

    def batch(self, sequences: int, index: int = 0, dtype: torch.dtype = torch.float32) -> Chunk:
        """Training sequences number `index`: the same ones whenever it is asked for."""
        return self._draw(sequences, 2 * index, dtype)

    def held_out(self, sequences: int, index: int = 0, dtype: torch.dtype = torch.float32) -> Chunk:
        """Sequences of a generator that training never uses."""
        return self._draw(sequences, 2 * index + 1, dtype)

    def batches(self, sequences: int, dtype: torch.dtype = torch.float32) -> Iterator[Chunk]:
        """Fresh training sequences for ever."""
        index = 0
        while True:
            yield self.batch(sequences, index, dtype)
            index += 1

    def _draw(self, sequences: int, stream: int, dtype: torch.dtype) -> Chunk:
        # numpy's generator, because torch's takes no more than 32 bits of seed
        generator = np.random.default_rng((self.seed, stream))
        numbers = torch.from_numpy(generator.random((self.length, sequences)))
        early = max(1, self.length // 10)
        late = max(early + 1, self.length // 2)
        first = torch.from_numpy(generator.integers(0, early, sequences))
        second = torch.from_numpy(generator.integers(early, late, sequences))
        column = torch.arange(sequences)
        marks = torch.zeros_like(numbers)
        marks[first, column] = 1
        marks[second, column] = 1
        total = numbers[first, column] + numbers[second, column]
        inputs = torch.stack((numbers, marks), dim=-1).to(dtype)
        targets = total.to(dtype).expand(self.length, sequences)[:, :, None].contiguous()
        return inputs, targets, "last"
