"""Marked addition: seeded, of any length, and scaled so that the mean scores 1/6."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.tasks.marked_addition import MEAN_ERROR, MarkedAddition


@given(st.integers(2, 120), st.integers(1, 20), st.integers(0, 1000))
def test_two_marks_and_their_sum(length: int, sequences: int, seed: int) -> None:
    inputs, targets, at = MarkedAddition(length, seed).batch(sequences, dtype=torch.float64)
    assert inputs.shape == (length, sequences, 2)
    assert targets.shape == (length, sequences, 1)
    assert at == "last"
    numbers, marks = inputs.unbind(-1)
    assert torch.equal(marks.sum(0), torch.full((sequences,), 2.0, dtype=torch.float64))
    assert set(marks.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close((numbers * marks).sum(0), targets[-1, :, 0])
    assert torch.equal(targets, targets[-1:].expand_as(targets))
    places = marks.T.nonzero()[:, 1].reshape(sequences, 2)
    assert bool((places[:, 0] < max(1, length // 10)).all())
    assert bool((places[:, 1] < max(2, length // 2)).all())


def test_the_mean_scores_one_sixth() -> None:
    _, targets, _ = MarkedAddition(20, seed=1).held_out(20_000)
    assert abs(targets[-1].var().item() - MEAN_ERROR) < 0.004
    assert abs(targets[-1].mean().item() - 1) < 0.01


def test_batches_are_seeded_and_held_out_ones_are_others() -> None:
    task = MarkedAddition(12, seed=3)
    assert torch.equal(task.batch(4, 5)[0], MarkedAddition(12, seed=3).batch(4, 5)[0])
    others = [task.batch(4, 0), task.batch(4, 1), task.held_out(4, 0), MarkedAddition(12, seed=4).batch(4, 0)]
    for i, one in enumerate(others):
        for other in others[i + 1 :]:
            assert not torch.equal(one[0], other[0])
    stream = task.batches(4)
    assert torch.equal(next(stream)[0], task.batch(4, 0)[0])
    assert torch.equal(next(stream)[0], task.batch(4, 1)[0])


def test_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    MarkedAddition(9).batch(3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_sequence_of_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        MarkedAddition(1)
