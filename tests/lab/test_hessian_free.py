"""Settings as an optimiser: dampings by their words, batches by their amounts, and steps that can be
interrupted.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnewton.lab.building import build
from rnnewton.lab.choices import Facts, resolve
from rnnewton.lab.configuration import changed
from rnnewton.lab.hessian_free import HessianFreeLearner, damping_of, schedule_of
from rnnewton.lab.learner import Learner, Task, learner_of
from rnnewton.lab.settings import OptimizerSettings, Settings
from rnnewton.newton.damping import LineSearch, Metric, Structural, Tikhonov, part_of
from rnnewton.newton.descent import Tick

SYMBOLS = 6


def task_of(**given: object) -> Task:
    ids = np.random.default_rng(1).integers(0, SYMBOLS, 4_001).astype(np.uint8)
    plain = {
        "hidden": (5,),
        "length": 20,
        "gradient_batch": "1/4",
        "curvature_batch": "1/2",
        "threads": 1,
        "steps": 9,
    }
    settings = resolve(changed(Settings(), {**plain, **given}), Facts(len(ids), SYMBOLS, 1, 1 << 30))
    return Task(build(settings, SYMBOLS), ids, settings)


def test_dampings_by_their_words() -> None:
    settings = OptimizerSettings(damping="structural:0.3+tikhonov:0.02", form="squared", tap="cell")
    damping = damping_of(settings)
    structural, tikhonov = part_of(damping, Structural), part_of(damping, Tikhonov)
    assert structural is not None and (structural.mu, structural.form, structural.tap) == (
        0.3,
        "squared",
        "cell",
    )
    assert tikhonov is not None and tikhonov.lam == 0.02
    search = part_of(damping_of(replace(settings, damping="line-search:0.7")), LineSearch)
    assert search is not None and search.decay == 0.7
    metric = part_of(damping_of(replace(settings, damping="metric:2")), Metric)
    assert metric is not None and metric.kappa == 2.0


def test_batches_by_their_amounts() -> None:
    schedule = schedule_of(task_of())
    assert (schedule.sizes.gradient, schedule.sizes.curvature, schedule.growth) == (1000, 500, "fixed")
    growing = schedule_of(task_of(final_gradient_batch="all", growth_work=2.0, growth=2.0))
    assert [growing.at(work).gradient for work in (0.0, 2.0, 4.0, 100.0)] == [1000, 2000, 4000, 4000]
    assert schedule_of(task_of(gradient_batch="all", curvature_batch="300")).sizes.curvature == 300


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dropout": 0.4, "weight_noise": 0.02},
        {"optimizer": "adam", "report_every": 6, "batch": 3},
        {"optimizer": "nesterov", "report_every": 6, "batch": 3, "carry": True, "weight_noise": 0.02},
        {"optimizer": "lstm-online", "cell": "lstm", "report_every": 60, "batch": 2},
    ],
    ids=["hf", "hf regularised", "adam", "carried", "online"],
)
def test_an_interrupted_step_leaves_all_as_it_was(given: dict[str, object]) -> None:
    stop_at: list[int] = []

    def interrupt(tick: Tick) -> None:
        if tick.iteration in stop_at:
            raise KeyboardInterrupt

    learners: list[Learner] = [learner_of(task_of(**given), interrupt) for _ in range(2)]
    for learner in learners:
        learner.step()
    stop_at.append(2)
    with pytest.raises(KeyboardInterrupt):
        learners[0].step()
    stop_at.clear()
    for _ in range(2):
        reports = [learner.step() for learner in learners]
    assert torch.equal(learners[0].weights, learners[1].weights)
    assert reports[0].loss_before == reports[1].loss_before and reports[0].step == reports[1].step == 3


def test_a_learner_restored_goes_on_to_the_bit() -> None:
    first = HessianFreeLearner(task_of(dropout=0.2), lambda tick: None)
    first.step()
    state, weights = first.state_dict(), first.weights
    second = HessianFreeLearner(task_of(dropout=0.2), lambda tick: None)
    second.load_state_dict(state, weights)
    for _ in range(2):
        assert first.step().loss_before == second.step().loss_before
    assert torch.equal(first.weights, second.weights)
    average = first.average
    assert average is not None and torch.equal(average, second.average)
