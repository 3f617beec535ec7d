"""Backtracking, by hand, and line-search damping's second path."""

import math

import pytest
import torch

import rnnewton as rn
from rnnewton.newton.line_search import DirectionSearch, backtrack, first_decrease


def test_backtracking_shortens_while_the_loss_falls():
    """f(ε) = (ε − 0.6)²: 1 → 0.16, 0.8 → 0.04, 0.64 → 0.0016, 0.512 → 0.0077: 0.64 it is, after four
    evaluations.
    """
    found = backtrack(lambda step: (step - 0.6) ** 2, 1.0, decay=0.8, decays=10)
    assert found.step == pytest.approx(0.64)
    assert found.loss == pytest.approx(0.0016)
    assert found.evaluations == 4


def test_backtracking_goes_on_until_below_the_loss_before():
    """A bump between: at 1 the loss is 5, at 0.5 it is 6, at 0.25 it is 0.5, below the 1 before."""
    values = {1.0: 5.0, 0.5: 6.0, 0.25: 0.5, 0.125: 0.9}
    assert backtrack(values.__getitem__, 1.0, 0.5, 10).step == 0.25


def test_backtracking_gives_up_with_a_step_of_zero():
    found = backtrack(lambda step: 1.0 + step, 1.0, decay=0.8, decays=10)
    assert (found.step, found.loss, found.evaluations) == (0.0, 1.0, 11)
    assert not backtrack(lambda step: math.nan, 1.0, 0.8, 3).improved
    assert not backtrack(lambda step: 1.0, 1.0, 0.8, 3).improved, "an equal loss is not lower"


def test_non_finite_losses_are_backtracked_over():
    assert backtrack(lambda step: math.inf if step > 0.3 else step - 1, 0.0, 0.5, 10).step == pytest.approx(
        0.5**10
    ), "the loss goes on falling"
    assert backtrack(lambda step: math.nan if step > 0.3 else abs(step - 0.25) - 1, 0.0, 0.5, 10).step == 0.25


def test_armijo_takes_the_first_step_that_wins_enough():
    """f(ε) = 10 − ε + 4ε², slope −1: 1 → 13, 0.5 → 10.5, 0.5·0.5² = 0.125 → 9.9375."""
    found = first_decrease(lambda e: 10 - e + 4 * e * e, 10.0, -1.0, sufficient=0.01, decay=0.5, decays=10)
    assert (found.step, found.evaluations) == (0.125, 3)
    tried = []
    assert not first_decrease(lambda e: tried.append(e) or 99.0, 10.0, -1.0, 0.01, 0.8, 5).improved
    assert tried == pytest.approx([0.8**k for k in (0, 1, 3, 6, 10, 15)])
    assert not first_decrease(lambda e: 10 - e + 4 * e * e, 10.0, -1.0, 0.9, 0.5, 1).improved


def test_a_stalled_direction_leaves_x_f_as_it_was():
    search = DirectionSearch(
        lambda x: float(x.sum()) ** 2 + 1, 1.0, rn.LineSearch(0.5, decays=3), torch.zeros(2)
    )
    assert not search.follow(torch.ones(2))
    assert search.evaluations == 4
    assert torch.equal(search.x, torch.zeros(2))
    assert search.value == 1.0


def test_directions_add_up_each_with_its_own_length():
    """f(x) = (x₁ − 1)² + (x₂ − 0.5)²; the whole first direction, half of the second."""
    target = torch.tensor([1.0, 0.5])
    search = DirectionSearch(
        lambda x: float(((x - target) ** 2).sum()), 1.25, rn.LineSearch(0.5), torch.zeros(2)
    )
    assert search.follow(torch.tensor([1.0, 0.0]))
    assert search.follow(torch.tensor([0.0, 1.0]))
    assert torch.equal(search.x, target)
