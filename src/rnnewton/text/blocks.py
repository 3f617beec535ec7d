"""Ids as sequences: segments of T symbols, and (T, B) blocks of them for training.

T  length of a segment; input t predicts symbol t + 1, so a text of N ids has (N - 1) // T whole segments
B  sequences side by side
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rnnewton.text.alphabet import Ids
from rnnewton.text.errors import UserError

Chunk = tuple[Tensor, Tensor]  # inputs and targets, (T, B) int64 each
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Sequences:
    """A text cut into consecutive segments of one length; the rest, shorter than a segment, is kept apart."""

    ids: Ids
    length: int  # T

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"a sequence has at least 1 symbol, not {self.length}")
        if len(self.ids) < 2:
            raise UserError(
                f"a text of {len(self.ids)} symbols has nothing to predict: at least 2 are needed"
            )

    def __len__(self) -> int:
        """Whole segments."""
        return (len(self.ids) - 1) // self.length

    @property
    def left_over(self) -> int:
        """Predictable symbols after the last whole segment."""
        return (len(self.ids) - 1) % self.length

    def block(self, indices: np.ndarray | list[int], device: torch.device | None = None) -> Chunk:
        """Segments side by side: inputs and targets (T, B) int64."""
        starts = np.asarray(indices, dtype=np.int64) * self.length
        rows = self.ids[starts[:, None] + np.arange(self.length + 1)]  # (B, T + 1)
        both = torch.from_numpy(np.ascontiguousarray(rows.T, dtype=np.int64)).to(device)
        return both[:-1], both[1:]

    def rest(self, device: torch.device | None = None) -> Chunk | None:
        """The ragged end as a block of one shorter sequence, if there is one."""
        if not self.left_over:
            return None
        ids = np.asarray(self.ids[len(self) * self.length :], dtype=np.int64)
        both = torch.from_numpy(ids).to(device)[:, None]
        return both[:-1], both[1:]

    def everything(self, width: int, device: torch.device | None = None) -> Iterator[Chunk]:
        """The whole text once, each segment from state zero, the ragged end last: N - 1 scored symbols."""
        for start in range(0, len(self), width):
            yield self.block(np.arange(start, min(start + width, len(self))), device)
        rest = self.rest(device)
        if rest is not None:
            yield rest

    def line(self) -> str:
        """Says what the cutting does, in one line."""
        rest = f", {self.left_over:,} symbols left over at the end" if self.left_over else ""
        return f"{len(self):,} sequences of {self.length:,}{rest}"


@dataclass(frozen=True)
class Streams:
    """A text as B streams read side by side, T symbols at a time, for states that are carried from block to
    block.

    Stream b begins at b times a B-th of the text; the last N - 1 - B * per_stream symbols are in no stream.
    """

    ids: Ids
    length: int  # T
    width: int  # B

    def __post_init__(self) -> None:
        if self.width < 1 or self.length < 1:
            raise UserError(
                f"streams have a width and a length of at least 1, not {self.width} and {self.length}"
            )
        if len(self.ids) - 1 < self.width:
            raise UserError(f"a text of {len(self.ids)} symbols is too short for {self.width} streams")

    @property
    def per_stream(self) -> int:
        """Scored symbols of each stream."""
        return (len(self.ids) - 1) // self.width

    def __len__(self) -> int:
        """Blocks in one pass, the last one possibly shorter."""
        return -(-self.per_stream // self.length)

    def block(self, index: int, device: torch.device | None = None) -> Chunk:
        """The index-th block of a pass: (T, B), or (fewer, B) at the end. Index 0 starts from state zero."""
        first = index * self.length
        length = min(self.length, self.per_stream - first)
        if not 0 <= first < self.per_stream:
            raise IndexError(f"block {index} of {len(self)}")
        starts = np.arange(self.width) * self.per_stream + first
        both = torch.from_numpy(np.asarray(self.ids[starts + np.arange(length + 1)[:, None]], dtype=np.int64))
        both = both.to(device)
        return both[:-1], both[1:]


class Consecutive:
    """Consecutive sub-corpora (the thesis's Wikipedia runs): the next `number` segments, around the text's
    end."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UserError("there are no whole sequences to take: the text is shorter than one sequence")
        self.count, self.position = count, 0

    def take(self, number: int) -> np.ndarray:
        """The next indices; never more than there are."""
        number = min(number, self.count)
        indices = (self.position + np.arange(number)) % self.count
        self.position = (self.position + number) % self.count
        return indices

    def state_dict(self) -> dict[str, int]:
        """JSON values."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues where `state_dict` was taken."""
        self.position = int(state["position"])


def counts(ids: Ids, symbols: int) -> np.ndarray:
    """How often each symbol occurs, in blocks: a mapped text does not come into memory as a whole."""
    total = np.zeros(symbols, dtype=np.int64)
    for start in range(0, len(ids), _BLOCK):
        total += np.bincount(ids[start : start + _BLOCK], minlength=symbols)
    return total
