"""Sampling without replacement, and sizes that grow."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnewton.newton.batches import BatchSchedule, EpochSampler, Sizes


@given(
    count=st.integers(1, 40),
    takes=st.lists(st.integers(1, 45), min_size=1, max_size=12),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_epoch_holds_every_example_once_and_no_batch_holds_one_twice(count, takes, seed):
    sampler = EpochSampler(count, seed)
    drawn = []
    for size in takes:
        batch = sampler.take(size).tolist()
        assert len(batch) == len(set(batch)) == min(size, count)
        if size < count:
            drawn += batch
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_seeds_differ_and_repeat():
    def first(seed):
        return EpochSampler(100, seed).take(10).tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize("before", [1, 3, 4, 7])
def test_a_resumed_sampler_goes_on_to_the_bit(before):
    sampler, other = EpochSampler(20, 3), EpochSampler(20, 3)
    for _ in range(before):
        sampler.subset(sampler.take(7), 3)
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for _ in range(6):
        mine, theirs = sampler.take(7), other.take(7)
        assert torch.equal(mine, theirs)
        assert torch.equal(sampler.subset(mine, 3), other.subset(theirs, 3))


def test_subsets_lie_inside_and_differ_from_call_to_call():
    sampler = EpochSampler(100, 0)
    batch = sampler.take(50)
    first, second = sampler.subset(batch, 10), sampler.subset(batch, 10)
    assert set(first.tolist()) <= set(batch.tolist())
    assert len(set(first.tolist())) == 10
    assert not torch.equal(first, second)
    assert torch.equal(sampler.subset(batch, 99), batch)


def test_a_state_of_another_text_is_refused():
    with pytest.raises(ValueError, match="another text"):
        EpochSampler(5).load_state_dict(EpochSampler(6).state_dict())
    with pytest.raises(ValueError):
        EpochSampler(0)
    with pytest.raises(ValueError):
        EpochSampler(3).take(0)


def test_fixed_and_geometric_growth_by_hand():
    """25 k doubled every 4 units of work, at most 100 k; CG's limit goes from 4 to 16 with its logarithm."""
    sizes = Sizes(25_000, 5_000, 4)
    assert BatchSchedule(sizes).at(100.0) == sizes
    grown = BatchSchedule(sizes, "geometric", factor=2, every=4, largest=100_000, last_iterations=16)
    assert [grown.at(w).gradient for w in (0, 3.9, 4, 8, 12, 400)] == [25_000, 25_000, 50_000, *[100_000] * 3]
    assert [grown.at(w).curvature for w in (0, 4, 8)] == [5_000, 10_000, 20_000]
    assert [grown.at(w).iterations for w in (0, 4, 8, 99)] == [4, 8, 16, 16]


def test_growth_in_proportion_to_the_work_done():
    """20 k characters, then 1 % of the work so far; a curvature batch of a fifth, but of 10 k at least."""
    schedule = BatchSchedule(
        Sizes(20_000, 4_000, 3),
        "proportional",
        per_work=0.01,
        largest=200_000,
        last_iterations=8,
        least_curvature=10_000,
    )
    millions = [0, 2, 4, 10, 20, 90]
    assert [schedule.at(m * 1e6).gradient // 1000 for m in millions] == [20, 20, 40, 100, 200, 200]
    assert [schedule.at(m * 1e6).curvature // 1000 for m in millions] == [10, 10, 10, 20, 40, 40]
    assert [schedule.at(m * 1e6).iterations for m in millions] == [3, 3, 4, 6, 8, 8]
    tiny = BatchSchedule(Sizes(500, 100, 3), least_curvature=10_000)
    assert tiny.at(0.0).curvature == 500, "never more than the gradient batch"


def test_the_norm_test_counts_growths():
    schedule = BatchSchedule(Sizes(1000, 200, 3), "norm", factor=1.5, noise=0.25)
    assert schedule.asks_for_more(0.3)
    assert not schedule.asks_for_more(0.2)
    assert not schedule.asks_for_more(None)
    assert not BatchSchedule(Sizes(1000, 200, 3)).asks_for_more(9.0)
    assert schedule.at(0.0, growths=2) == Sizes(2250, 450, 3)
    assert schedule.at(0.0, growths=100_000).gradient > 0, (
        "without an upper bound the whole text is soon reached"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: BatchSchedule(Sizes(10, 20, 1)),
        lambda: BatchSchedule(Sizes(10, 5, 0)),
        lambda: BatchSchedule(Sizes(10, 5, 1), growth="sideways"),
        lambda: BatchSchedule(Sizes(10, 5, 1), factor=0.5),
        lambda: BatchSchedule(Sizes(10, 5, 1), largest=5),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()
