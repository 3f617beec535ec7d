"""Where states are kept: every step once, in order, and about √T of them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from rnnewton.recurrent.passes.segments import ROWS, SPACINGS, paced


@given(some.integers(1, 3000), some.sampled_from(sorted(SPACINGS)))
def test_segments_cover_every_step_once(steps: int, spacing: str) -> None:
    segments = SPACINGS[spacing](steps)
    assert segments[0][0] == 0 and segments[-1][1] == steps
    assert all(start < stop for start, stop in segments)
    assert all(one[1] == two[0] for one, two in pairwise(segments))


@given(some.integers(1, 3000))
def test_states_kept_and_steps_repeated_are_about_the_root(steps: int) -> None:
    longest = {name: max(b - a for a, b in spacing(steps)) for name, spacing in SPACINGS.items()}
    kept = {name: len(spacing(steps)) for name, spacing in SPACINGS.items()}
    assert kept["even"] <= steps**0.5 + 1 and longest["even"] <= steps**0.5 + 1
    assert kept["uneven"] <= (2 * steps) ** 0.5 + 1 and longest["uneven"] <= (2 * steps) ** 0.5 + 1
    lengths = [b - a for a, b in SPACINGS["uneven"](steps)][1:]
    assert lengths == sorted(lengths, reverse=True)  # shorter towards the end
    held = [length + states for states, length in enumerate(lengths, start=2)]
    assert max(held, default=0) <= (2 * steps) ** 0.5 + 3  # states kept and steps repeated, at any time


@given(some.integers(1, 500), some.integers(1, 6000))
def test_a_stored_walk_takes_about_so_many_rows_at_a_time(steps: int, sequences: int) -> None:
    segments = paced(steps, sequences)
    assert segments[0][0] == 0 and segments[-1][1] == steps
    assert max(b - a for a, b in segments) * sequences <= max(ROWS, sequences)
