"""Bits per character of a text in the middle of training: in parallel lanes, each warmed up on what stands
before it.

N: symbols of the text. T, B: time steps and lanes. Inputs, targets and masks are (T, B).

A carried state cannot be had in parallel; a lane therefore reads the last `WARM_UP` symbols before its part
first, unscored. Every one of the N - 1 symbols is scored once. `rnnewton evaluate` carries one state over
the whole text instead.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rnnewton.text.alphabet import Ids

LANE = 1000  # scored symbols of a lane
WARM_UP = 100
AT_ONCE = 1 << 16  # symbols read side by side: what bounds memory


@dataclass(frozen=True)
class Lanes:
    """A text ready to be scored again and again."""

    chunks: list[tuple[Tensor, Tensor, Tensor]]  # inputs, targets, where a target counts
    count: int  # scored symbols
    total: int  # symbols that the text has to score: more where only a sample is taken
    characters: int  # symbols read, warm-up included

    def bits(self, problem: Any, weights: Tensor) -> float:
        """Bits per character at some weights, the problem's own weights untouched."""
        nats = sum(problem.loss_at(weights, chunk) * problem.scored(chunk) for chunk in self.chunks)
        return nats / self.count / math.log(2)


def lanes(ids: Ids, device: torch.device | None = None, at_most: int | None = None) -> Lanes | None:
    """The lanes of a text; None where it has nothing to predict.

    A text longer than `at_most` is sampled: lanes at even distances.
    """
    scored = len(ids) - 1
    if scored < 1:
        return None
    chunks: list[tuple[Tensor, Tensor, Tensor]] = []
    length = min(LANE, scored)
    starts = np.arange(0, scored, length)
    if at_most is not None and scored > at_most:
        starts = starts[:: -(-scored // at_most)]
    width = max(1, AT_ONCE // (length + WARM_UP))
    for first in range(0, len(starts), width):
        chunks.append(_chunk(ids, starts[first : first + width], length, device))
    count = sum(int(chunk[2].sum()) for chunk in chunks)
    return Lanes(chunks, count, scored, sum(chunk[0].numel() for chunk in chunks))


def _chunk(
    ids: Ids, starts: np.ndarray, length: int, device: torch.device | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Lanes side by side; the one at the text's beginning has no warm-up, and reads its own end twice
    instead.
    """
    begin = np.maximum(starts - WARM_UP, 0)
    steps = min(length + WARM_UP, len(ids) - 1) if len(starts) > 1 or starts[0] > 0 else length
    positions = begin + np.arange(steps)[:, None]
    counts = (positions >= starts) & (positions < np.minimum(starts + length, len(ids) - 1))
    positions = np.minimum(positions, len(ids) - 2)
    inputs = torch.from_numpy(np.asarray(ids[positions], dtype=np.int64))
    targets = torch.from_numpy(np.asarray(ids[positions + 1], dtype=np.int64))
    return inputs.to(device), targets.to(device), torch.from_numpy(counts).to(device)
