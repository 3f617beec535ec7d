"""The rules that move damping, with numbers worked out by hand."""

import json
import math

import pytest

import rnnewton as rn
from rnnewton.newton.damping import Combined, Evidence, Metric, part_of, restored
from rnnewton.newton.damping.base import moved


def inside(p, first=True):
    return Evidence(p, last=False, first=first)


def at_end(p, first=True, promise=0.1):
    return Evidence(p, promise, last=True, first=first)


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.2, 0.15), (0.25, 0.1), (0.5, 0.1), (0.75, 0.1), (0.8, 0.2 / 3), (-1.0, 0.15), (-math.inf, 0.15)],
)
def test_a_low_ratio_asks_for_more_damping_and_a_high_one_for_less(p, expected):
    """The thesis prints the two factors the wrong way round."""
    assert moved(0.1, p, 2 / 3) == pytest.approx(expected)
    structural = rn.Structural(0.1)
    assert structural.adapted(inside(p), structural).mu == pytest.approx(expected)
    tikhonov = rn.Tikhonov(0.1)
    assert tikhonov.adapted(at_end(p), tikhonov).lam == pytest.approx(expected)


def test_inside_a_run_mu_stays_within_a_third_and_three_times_of_its_start():
    start = rn.Structural(0.1)
    mus, current = [], start
    for _ in range(4):
        current = current.adapted(inside(0.0), start)
        mus.append(current.mu)
    assert mus == pytest.approx([0.15, 0.225, 0.3, 0.3])
    assert not current.trusted(start)
    current = start
    for _ in range(5):
        current = current.adapted(inside(1.0), start)
    assert current.mu == pytest.approx(0.1 / 3)
    assert current.trusted(start)


def test_watching_once_a_step_moves_at_the_end_only():
    once = rn.Structural(0.1, watch="end")
    assert once.every is None
    assert once.adapted(inside(0.0), once).mu == 0.1
    assert once.adapted(at_end(0.0, first=False), once).mu == pytest.approx(0.15)
    assert once.adapted(at_end(0.0), once).trusted(once)


def test_a_watched_part_moves_at_the_end_only_when_the_run_was_too_short_to_be_watched():
    every = rn.Structural(0.1)
    assert every.every == 5
    assert every.adapted(at_end(0.0, first=False), every).mu == 0.1
    assert every.adapted(at_end(0.0, first=True), every).mu == pytest.approx(0.15)


def test_what_cannot_be_believed_moves_nothing():
    for damping in (rn.Structural(0.1), rn.Tikhonov(0.1), Metric()):
        assert damping.adapted(Evidence(None), damping) == damping
        assert damping.adapted(Evidence(None, last=True), damping) == damping


def test_adapt_false_moves_nothing():
    for damping in (rn.Structural(0.1, adapt=False), rn.Tikhonov(0.1, adapt=False), Metric(adapt=False)):
        for evidence in (inside(0.0), at_end(0.0), at_end(0.0, promise=2.0)):
            assert damping.adapted(evidence, damping) == damping
        assert damping.grown() == damping
        assert damping.every is None


def test_lambda_has_a_floor_and_leaps_when_the_promise_is_absurd():
    lam = rn.Tikhonov(0.01)
    for _ in range(100):
        lam = lam.adapted(at_end(1.0), lam)
    assert lam.lam == pytest.approx(1e-5)
    assert lam.adapted(at_end(0.5, promise=2.0), lam).lam == pytest.approx(1e-4)
    assert lam.adapted(at_end(0.5, promise=500.0), lam).lam == pytest.approx(5e-3)
    assert rn.Tikhonov(0.01, floor=0.005, factor=0.1).adapted(at_end(1.0), lam).lam == 0.005


def test_metric_damping_moves_kappa_and_lambda_with_it():
    """× 0.8 above 3/4, ÷ 0.8 below 1/4, ÷ 0.8³ below 0, floor 0.3."""
    metric = Metric()
    assert metric.adapted(at_end(0.9), metric).kappa == pytest.approx(0.8)
    assert metric.adapted(at_end(0.1), metric).kappa == pytest.approx(1.25)
    assert metric.adapted(at_end(-0.1), metric).kappa == pytest.approx(1 / 0.512)
    assert metric.adapted(at_end(0.9, promise=1.5), metric).kappa == pytest.approx(1 / 0.512)
    assert metric.adapted(at_end(0.9, promise=7.0), metric).kappa == pytest.approx(7.0)
    assert metric.adapted(at_end(0.1, promise=0.5), metric).kappa == pytest.approx(1 / 0.512)  # too bold
    assert Metric(0.5, lam=1e-3).terms().tikhonov == 1e-3  # never below its first value
    assert Metric(4.0, lam=1e-3).terms().tikhonov == pytest.approx(4e-3)
    assert Metric(0.5).terms().metric == 0.5
    for _ in range(100):
        metric = metric.adapted(at_end(1.0), metric)
    assert metric.kappa == 0.3
    assert metric.lam == Metric().lam


def test_sums_add_their_terms_and_one_p_moves_each_adaptive_part():
    both = rn.Structural(0.1) + rn.Tikhonov(0.01)
    assert isinstance(both, Combined)
    terms = both.terms()
    assert (terms.structural, terms.tikhonov) == (0.1, 0.01)
    assert both.every == 5
    moved_once = both.adapted(inside(0.0), both)
    assert part_of(moved_once, rn.Structural).mu == pytest.approx(0.15)
    assert part_of(moved_once, rn.Tikhonov).lam == 0.01
    finished = moved_once.adapted(at_end(0.0, first=False), both)
    assert part_of(finished, rn.Structural).mu == pytest.approx(0.15)
    assert part_of(finished, rn.Tikhonov).lam == pytest.approx(0.015)
    everything = both + rn.LineSearch(0.7)
    assert [part.kind for part in everything.parts] == ["structural", "tikhonov", "line-search"]


def test_martens_weight_multiplies_mu_by_lambda():
    both = rn.Structural(0.1, times_lambda=True) + rn.Tikhonov(0.5)
    assert both.terms().structural == pytest.approx(0.05)


def test_line_search_alone_adds_nothing_to_the_curvature():
    terms = rn.LineSearch(0.8).terms()
    assert (terms.structural, terms.tikhonov, terms.metric) == (0, 0, 0)


def test_a_refused_step_grows_every_part():
    both = (rn.Structural(0.1) + rn.Tikhonov(0.01)).grown()
    assert part_of(both, rn.Structural).mu == pytest.approx(0.225)
    assert part_of(both, rn.Tikhonov).lam == pytest.approx(0.0225)


def test_values_survive_json():
    damping = (
        rn.Structural(0.1, form="squared", states=["a", "b"])
        + rn.Tikhonov(0.01, factor=0.8)
        + rn.LineSearch()
    )
    assert restored(json.loads(json.dumps(damping.state()))) == damping
    assert restored(json.loads(json.dumps(Metric(0.3).state()))) == Metric(0.3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rn.Tikhonov(-1.0),
        lambda: rn.Structural(math.nan),
        lambda: rn.Structural(0.1, form="nonsense"),
        lambda: rn.Structural(0.1, tap="nonsense"),
        lambda: rn.Structural(0.1, watch=0),
        lambda: rn.Structural(0.1, watch="sometimes"),
        lambda: rn.LineSearch(1.0),
        lambda: rn.LineSearch(0.8, decays=0),
        lambda: rn.Tikhonov(0.1, factor=1.5),
        lambda: rn.Tikhonov(0.1) + rn.Tikhonov(0.2),
        lambda: Metric() + rn.Tikhonov(0.2),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()
