"""How a batch is cut so that its passes fit a memory budget: a choice that never changes the result.

Legend: T steps, B sequences, h units, G gates, O outputs; all counts are numbers per sequence and step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import make_cell
from rnnewton.recurrent.passes.segments import ROWS, SPACINGS, Segments, paced
from rnnewton.recurrent.passes.tape import is_derived

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
        return Plan(paced(steps, sequences), True, everything)
    segments = SPACINGS[spacing](steps)
    if memory == "recomputed":
        return Plan(segments, False, everything)
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise ValueError(f"memory={memory!r}: give 'stored', 'recomputed' or a number of bytes")
    needs, room = needs_of(architecture), memory // itemsize
    left = room - needs.tape * steps * sequences
    pace = needs.passes * max(ROWS, sequences) + sequences * (needs.states * steps + needs.step)
    if pace <= left:
        return Plan(paced(steps, sequences), True, everything)
    longest = max(stop - start for start, stop in segments)
    left = room - needs.states * len(segments) * sequences
    each = (needs.tape + needs.passes + needs.states) * longest + needs.states * len(segments) + needs.step
    return Plan(segments, False, _tiles(sequences, left, each))


class Needs(NamedTuple):
    """In numbers of the passes' dtype."""

    tape: int  # per position: what the forward pass leaves for the derivatives
    passes: int  # per position of a segment: what a pass over it takes beside the tape
    states: int  # per position between two steps: the states, or R(states)
    step: int  # per sequence: what one step takes while it is computed


def needs_of(architecture: Architecture) -> Needs:
    cell = make_cell(architecture)
    gates, factored, gated = len(cell.gates), int(cell.factored), int(cell.gated)
    kept = (gates + 2) * gated + 3 * factored + is_derived(cell) * (gates + factored)
    states = (1 + gated) * sum(architecture.hidden)
    drives = (gates + 2 * factored) * (sum(architecture.hidden) + max(architecture.hidden))
    outputs = architecture.output_size
    return Needs(
        tape=kept * sum(architecture.hidden) + states + outputs,
        passes=drives + 4 * max(architecture.hidden) + 4 * outputs,
        states=states,
        step=(4 * gates + 12) * max(architecture.hidden),
    )


def _tiles(sequences: int, budget: int, each: int) -> list[Tile]:
    width = max(min(budget // each, sequences), 1)
    return [Tile(start, min(start + width, sequences)) for start in range(0, sequences, width)]
