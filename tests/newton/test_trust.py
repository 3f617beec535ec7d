"""The ratio p, and when it means nothing."""

import math

import pytest
import torch

from rnnewton.newton.trust import Trust, rounding_of

X = torch.tensor([1.0, 2.0])


def test_p_is_the_thesis_ratio():
    measured = Trust(lambda x: 3.0, before=5.0, rounding=0.0).measure(X, q=-4.0)
    assert (measured.f, measured.p, measured.promise) == (-2.0, 0.5, 0.8)


def test_the_slope_corrected_loss():
    """f̃(x) − f̃(0) = −2 + (0.5, −0.25)·(1, 2) = −2."""
    tilted = Trust(lambda x: 3.0, 5.0, 0.0, tilt=torch.tensor([1.0, -0.25]))
    assert tilted.measure(X, -4.0).p == pytest.approx((-2 + 0.5) / -4)


def test_rounding_hides_a_small_promise():
    trust = Trust(lambda x: 5.0 - 1e-6, before=5.0, rounding=6e-7)
    assert trust.measure(X, q=-5e-6).p is None
    assert trust.measure(X, q=-1e-5).p == pytest.approx(0.1)
    assert rounding_of(2.0, torch.float32) == pytest.approx(2.4e-7, rel=0.02)


def test_a_rising_quadratic_has_no_ratio():
    assert Trust(lambda x: 3.0, 5.0, 0.0).measure(X, q=0.1).p is None


def test_non_finite_losses_are_the_worst_ratio():
    for value in (math.nan, math.inf):
        assert Trust(lambda x, v=value: v, 5.0, 0.0).measure(X, -1.0).p == -math.inf


def test_a_promise_of_more_than_the_whole_loss_is_absurd():
    assert Trust(lambda x: 3.0, 5.0, 0.0).measure(X, q=-10.0).promise == 2.0
    assert Trust(lambda x: 3.0, -5.0, 0.0).measure(X, q=-10.0).promise == 0.0, (
        "a loss below zero bounds nothing"
    )
