"""Scoring in lanes: every symbol once, and the right number where a lane holds the whole text."""

import math

import numpy as np
import pytest
import torch

from rnnewton.lab import scoring
from rnnewton.lab.scoring import lanes
from rnnewton.newton.problem import LinearizableProblem
from rnnewton.recurrent.model import RecurrentModel


@pytest.mark.parametrize("length", [2, 3, 50, 1000, 1001, 1002, 1101, 2001, 5003, 140_000])
def test_every_symbol_but_the_first_is_scored_once(length: int) -> None:
    ids = np.arange(length)
    found = lanes(ids)
    assert found is not None and found.count == length - 1
    seen = torch.cat([targets[counts] for _, targets, counts in found.chunks]).sort().values
    assert torch.equal(seen, torch.arange(1, length))
    for inputs, targets, counts in found.chunks:
        assert torch.equal(inputs[counts] + 1, targets[counts])


def test_a_lane_starts_before_its_part() -> None:
    found = lanes(np.arange(2001))
    assert found is not None
    inputs, _, counts = found.chunks[0]
    first = counts[:, 1].nonzero()[0, 0]
    assert int(inputs[first, 1]) == 1000 and int(first) == scoring.WARM_UP


def test_nothing_to_predict_is_no_score() -> None:
    assert lanes(np.arange(1)) is None and lanes(np.arange(0)) is None


def test_bits_are_those_of_the_stream() -> None:
    model = RecurrentModel("lstm", (5,), 7, 7, seed=3).double()
    problem = LinearizableProblem(model)
    ids = np.random.default_rng(0).integers(0, 7, 900)
    found = lanes(ids)
    assert found is not None
    line = torch.from_numpy(ids)[:, None]
    with torch.no_grad():
        logits, _ = model(line[:-1])
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), line[1:].flatten()) / math.log(2)
    assert found.bits(problem, problem.read()) == pytest.approx(float(expected), rel=1e-12)
    before = problem.read()
    found.bits(problem, torch.zeros_like(before))
    assert torch.equal(problem.read(), before)


def test_a_long_text_is_sampled_evenly() -> None:
    found = lanes(np.arange(100_001), at_most=20_000)
    assert found is not None and found.count == 20_000 and found.total == 100_000
    seen = torch.cat([targets[counts] for _, targets, counts in found.chunks])
    assert int(seen.min()) == 1 and int(seen.max()) > 95_000
