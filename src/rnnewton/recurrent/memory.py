"""How a batch is cut so that its passes fit a memory budget: a choice that never changes the result.

Legend: T steps, B sequences, h units, G gates, O outputs; all counts are numbers per sequence and step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.passes.segments import SPACINGS, Segments, whole

Memory = str | int


class Tile(NamedTuple):
    """Sequences [start, stop) of one chunk, walked together."""

    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    segments: Segments
    stored: bool
    tiles: list[Tile]


def plan_of(
    architecture: Architecture, steps: int, sequences: int, memory: Memory, spacing: str, itemsize: int
) -> Plan:
    """`memory`: "stored", "recomputed", or a number of bytes for this chunk."""
    if spacing not in SPACINGS:
        raise ValueError(f"spacing={spacing!r} is not known; take one of {', '.join(SPACINGS)}")
    everything = [Tile(0, sequences)]
    if memory == "stored":
        return Plan(whole(steps), True, everything)
    segments = SPACINGS[spacing](steps)
    if memory == "recomputed":
        return Plan(segments, False, everything)
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise ValueError(f"memory={memory!r}: give 'stored', 'recomputed' or a number of bytes")
    kept, passing, states = (itemsize * number for number in numbers(architecture))
    if (
        kept * steps * sequences <= memory // 2
    ):  # the tape may stay, and half the budget is left for the passes
        return Plan(whole(steps), True, _tiles(sequences, memory // 2, passing * steps))
    longest = max(stop - start for start, stop in segments)
    room = memory - states * len(segments) * sequences
    return Plan(segments, False, _tiles(sequences, room, (kept + passing) * longest))


def numbers(architecture: Architecture) -> tuple[int, int, int]:
    """Numbers per sequence and step: of the tape, of the passes over it, of the states between segments."""
    cell = make_cell(architecture)
    gates, factored, states = len(cell.gates), 3 * cell.factored, 1 + cell.gated
    tape = sum(width * ((gates if cell.gated else 0) + factored + states) for width in architecture.hidden)
    passing = sum(width * (2 * gates + 2 * factored + 2 * states) for width in architecture.hidden)
    outputs = architecture.output_size
    return tape + outputs, passing + 3 * outputs, 2 * states * sum(architecture.hidden)


def _tiles(sequences: int, budget: int, per_sequence: int) -> list[Tile]:
    width = max(min(budget // max(per_sequence, 1), sequences), 1)
    return [Tile(start, min(start + width, sequences)) for start in range(0, sequences, width)]
