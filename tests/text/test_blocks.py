"""Sequences, streams, and the order in which they are drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rnnewton.text.blocks import Consecutive, Sequences, Streams, counts
from rnnewton.text.errors import UserError


def test_segments_are_consecutive_and_targets_are_one_later() -> None:
    sequences = Sequences(np.arange(23, dtype=np.uint8), 5)
    assert (len(sequences), sequences.left_over) == (4, 2)
    inputs, targets = sequences.block([0, 3])
    assert inputs.shape == targets.shape == (5, 2)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs[:, 1].tolist() == [15, 16, 17, 18, 19]
    assert targets[:, 0].tolist() == [1, 2, 3, 4, 5]
    rest = sequences.rest()
    assert rest is not None
    assert rest[1][:, 0].tolist() == [21, 22]
    assert "2 symbols left over" in sequences.line()


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 5))
def test_everything_scores_each_symbol_but_the_first_once(n: int, length: int, width: int) -> None:
    chunks = list(Sequences(np.arange(n), length).everything(width))
    assert sorted(int(y) for _, targets in chunks for y in targets.flatten()) == list(range(1, n))
    assert all(torch.equal(inputs + 1, targets) for inputs, targets in chunks)


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 5))
def test_streams_continue_from_block_to_block(n: int, length: int, width: int) -> None:
    if n - 1 < width:
        with pytest.raises(UserError):
            Streams(np.arange(n), length, width)
        return
    streams = Streams(np.arange(n), length, width)
    blocks = [streams.block(i) for i in range(len(streams))]
    inputs = torch.cat([block[0] for block in blocks])
    assert inputs.shape == (streams.per_stream, width)
    assert torch.equal(torch.cat([block[1] for block in blocks]), inputs + 1)
    assert torch.equal(inputs[1:], inputs[:-1] + 1)
    with pytest.raises(IndexError):
        streams.block(len(streams))


def test_consecutive_sub_corpora_go_round() -> None:
    consecutive = Consecutive(5)
    assert consecutive.take(3).tolist() == [0, 1, 2]
    other = Consecutive(5)
    other.load_state_dict(consecutive.state_dict())
    assert consecutive.take(3).tolist() == other.take(3).tolist() == [3, 4, 0]
    assert consecutive.take(99).tolist() == [1, 2, 3, 4, 0]


def test_texts_that_are_too_short() -> None:
    with pytest.raises(UserError):
        Sequences(np.arange(1), 5)
    assert len(Sequences(np.arange(3), 5)) == 0
    with pytest.raises(UserError, match="shorter than one sequence"):
        Consecutive(0)


def test_counts_are_bincounts_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnnewton.text.blocks._BLOCK", 7)
    ids = np.random.default_rng(0).integers(0, 5, 50).astype(np.uint8)
    assert counts(ids, 6).tolist() == np.bincount(ids, minlength=6).tolist()
