"""Batches as chunks: what a caller gives, checked, and some of its sequences.

T: time, B: sequences, h: units. A chunk is `(inputs, targets)`, optionally with `at` and `state`; tensors
laid out over time are (T, B, ·), states (B, h).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = Any  # a chunk (a tuple) or a list of chunks; only the problem looks inside


def as_chunks(batch: Batch) -> list[tuple[Any, ...]]:
    """The chunks of a batch, checked for what people get wrong."""
    chunks: list[Any] = list(batch) if isinstance(batch, list) else [batch]
    if not chunks:
        raise ValueError("the batch is an empty list; give at least one chunk (inputs, targets)")
    for chunk in chunks:
        if not isinstance(chunk, tuple) or not 2 <= len(chunk) <= 4:
            raise TypeError(
                f"a batch is a tuple (inputs, targets), or a list of such tuples; got {_describe(chunk)}"
            )
    return chunks


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def choose(total: int, fraction: float, generator: torch.Generator) -> Tensor:
    """At least one of `total` indices, the given share of them, without replacement and in order."""
    count = min(total, max(1, math.ceil(total * fraction)))
    return torch.randperm(total, generator=generator)[:count].sort().values


def cut(chunks: list[tuple[Any, ...]], widths: list[int], chosen: Tensor) -> list[tuple[Any, ...]]:
    """The chosen sequences of every chunk, counted through all chunks."""
    result: list[tuple[Any, ...]] = []
    start = 0
    for chunk, width in zip(chunks, widths, strict=True):
        mine = chosen[(chosen >= start) & (chosen < start + width)] - start
        if len(mine) > 0:
            result.append(_columns(chunk, mine))
        start += width
    return result


def _columns(chunk: tuple[Any, ...], index: Tensor) -> tuple[Any, ...]:
    """Some sequences of one chunk: dimension 1 of what is laid out over time, dimension 0 of states."""
    inputs, targets = chunk[0], chunk[1]
    index = index.to(inputs.device)
    cut: list[Any] = [inputs.index_select(1, index), targets.index_select(1, index)]
    if len(chunk) > 2:
        cut.append(chunk[2].index_select(1, index) if isinstance(chunk[2], Tensor) else chunk[2])
    if len(chunk) > 3:
        cut.append(_rows_of(chunk[3], index))
    return tuple(cut)


def _rows_of(state: Any, index: Tensor) -> Any:
    """Dimension 0 of every tensor of a state: lists, tuples and named tuples of (B, h)."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.index_select(0, index)
    parts = [_rows_of(part, index) for part in state]
    if hasattr(state, "_fields"):
        return type(state)(*parts)
    return type(state)(parts)
