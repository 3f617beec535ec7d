"""What the forward pass of one segment of time leaves for the tangent and the adjoint.

Legend: S steps of the segment, B sequences, h units.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.cells import Cell
from rnnewton.recurrent.cells.base import Drive, Hidden, HiddenCell, Moment, State
from rnnewton.recurrent.passes.workspace import Workspace


class Course(NamedTuple):
    """States over time: entry 0 is the state before the segment, entry s + 1 the state after its step s."""

    out: Tensor  # (S + 1, B, h)
    cell: Tensor | None  # (S + 1, B, h), gated cells

    @staticmethod
    def starting(before: State, steps: int, space: Workspace, name: str) -> "Course":
        def room(field: str, first: Tensor) -> Tensor:
            course = space.take(f"{name} {field}", first, steps + 1, *first.shape)
            course[0] = first
            return course

        cell = room("cell", before.cell) if isinstance(before, HiddenCell) else None
        return Course(room("out", before.out), cell)

    def at(self, step: int) -> State:
        return Hidden(self.out[step]) if self.cell is None else HiddenCell(self.out[step], self.cell[step])

    def put(self, step: int, state: State) -> None:
        self.out[step] = state.out
        if self.cell is not None and isinstance(state, HiddenCell):
            self.cell[step] = state.cell

    @property
    def last(self) -> State:
        return self.at(-1)


class LayerTape(NamedTuple):
    course: Course
    kept: Any  # the cell's NamedTuple of (S, B, ·) tensors; None if nothing was kept
    drive: Drive | None  # (S, B, ·), only for cells whose derivatives are derived

    def moment(self, step: int) -> Moment:
        return Moment(
            self.course.at(step),
            self.course.at(step + 1),
            row(self.kept, step),
            None if self.drive is None else row(self.drive, step),
        )


class Tape(NamedTuple):
    """One segment, all layers."""

    start: int
    stop: int
    layers: tuple[LayerTape, ...]

    def last(self) -> list[State]:
        return [layer.course.last for layer in self.layers]

    def outs(self, first: int = 0) -> list[Tensor]:
        """H_out of every layer from step `first` of the segment on, each (steps, B, h)."""
        return [layer.course.out[1 + first :] for layer in self.layers]


def row(fields: Any, step: int) -> Any:
    """Step `step` of a NamedTuple of (S, …) tensors."""
    return type(fields)(*[None if value is None else value[step] for value in fields])


class Buffers:
    """(S, B, ·) room for a NamedTuple of (B, ·) tensors that appears step by step."""

    def __init__(self, steps: int, space: Workspace, name: str) -> None:
        self.steps, self._space, self._name = steps, space, name
        self.rows: Any = None

    def put(self, step: int, fields: Any) -> None:
        if self.rows is None:
            self.rows = type(fields)(*map(self._room, fields._fields, fields))
        for room, value in zip(self.rows, fields):
            if room is not None:
                room[step] = value

    def _room(self, field: str, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        return self._space.take(f"{self._name} {field}", value, self.steps, *value.shape)


def is_derived(cell: Cell) -> bool:
    """Whether the cell leaves its tangent or adjoint to torch.func, which then needs the drive."""
    return type(cell).tangent is Cell.tangent or type(cell).adjoint is Cell.adjoint


def scatter_rows(like: Tensor, steps: int, start: int, rows: Tensor) -> Tensor:
    """Zeros (S, B, h) with `rows` from step `start` on; the rows themselves where they cover everything."""
    if rows.shape[0] == steps:
        return rows
    full = torch.zeros((steps, *rows.shape[1:]), dtype=like.dtype, device=like.device)
    full[start : start + rows.shape[0]] = rows
    return full
