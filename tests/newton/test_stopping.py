"""Each reason to end a run, by numbers worked out by hand."""

import pytest

from rnnewton.newton.damping import Damping, Structural
from rnnewton.newton.stopping import (
    IterationLimit,
    LineSearchStalled,
    Progress,
    RelativeProgress,
    SecondsSpent,
    TrustLost,
    first_reason,
)


def progress(q, **fields):
    return Progress(start=Damping(), damping=Damping(), q=list(q), **fields)


def test_relative_progress_is_the_thesis_formula():
    """k = 2, ε = 0.1: (q(3) − q(1)) / q(3) = (−10 + 9) / −10 = 0.1 < 0.2 stops; (−10 + 5) / −10 = 0.5 does
    not.
    """
    rule = RelativeProgress(window=2, tolerance=0.1)
    assert rule(progress([0.0, -9.0, -9.5, -10.0]))
    assert not rule(progress([0.0, -5.0, -9.5, -10.0]))
    assert not rule(progress([0.0, -8.0, -9.0, -10.0])), "exactly k·ε is not below it"


def test_relative_progress_waits_for_more_than_k_iterations_and_a_negative_q():
    rule = RelativeProgress(window=10, tolerance=5e-4)
    flat = [-1.0] * 12
    assert not rule(progress(flat[:11])), "i = k"
    assert rule(progress(flat)), "i = k + 1"
    assert not rule(progress([1.0] * 12)), "q > 0"


def test_limits():
    assert IterationLimit(3)(progress([0.0, -1, -2, -3]))
    assert not IterationLimit(4)(progress([0.0, -1, -2, -3]))
    assert LineSearchStalled(5)(progress([0.0], stalled=6))
    assert not LineSearchStalled(5)(progress([0.0], stalled=5))
    assert SecondsSpent(2.0)(progress([0.0], seconds=2.0))
    assert not SecondsSpent(2.0)(progress([0.0], seconds=1.9))


@pytest.mark.parametrize(("mu", "ends"), [(0.29, False), (0.3, True)])
def test_trust_is_lost_at_three_times_mu0(mu, ends):
    start = Structural(0.1)
    assert TrustLost()(Progress(start, Structural(mu), q=[0.0])) is ends


def test_the_first_reason_is_named():
    stops = [IterationLimit(9), SecondsSpent(1.0), LineSearchStalled(1)]
    assert first_reason(stops, progress([0.0], seconds=5.0, stalled=9)) == "seconds spent"
    assert first_reason(stops, progress([0.0])) is None
