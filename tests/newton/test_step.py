"""One outer step on problems whose answer is known."""

import math
from dataclasses import replace

import pytest
import torch

import rnnewton as rn
from rnnewton.newton.averaging import Average
from rnnewton.newton.descent import best_kept
from rnnewton.newton.preconditioning import Identity, Krylov
from rnnewton.newton.settings import (
    ConjugateGradientSettings,
    CurvatureSettings,
    FinalStepSettings,
    HessianFreeSettings,
    RecoverySettings,
)
from rnnewton.newton.step import Memory, OuterStep

from .problems import QuadraticProblem, random_quadratic

EXACT = HessianFreeSettings(cg=ConjugateGradientSettings(iterations=60, tolerance=0.0, warm_start=0.95))


def quadratic_problem(size=8, seed=0):
    return QuadraticProblem(*random_quadratic(size, seed))


def take(problem, damping, settings=EXACT, memory=None, preconditioner=None, batch=100, curvature=50):
    ticks = []
    step = OuterStep(
        problem,
        settings,
        memory or Memory(damping, damping),
        preconditioner or Identity(),
        torch.Generator().manual_seed(0),
        ticks.append,
    )
    new, report = step.run(batch, curvature)
    return new, report, ticks


@pytest.mark.parametrize("lam", [0.0, 0.3, 5.0])
def test_step_is_the_dense_damped_newton_step(lam):
    problem = quadratic_problem()
    damped = problem.hessian + lam * torch.eye(8, dtype=torch.float64)
    expected = torch.linalg.solve(damped, -problem.linear)
    _, report, _ = take(problem, rn.Tikhonov(lam))
    assert report.accepted
    assert report.step_size == 1.0
    assert torch.allclose(problem.theta, expected, atol=1e-9)
    assert report.loss_after == pytest.approx(problem.value(expected))
    assert report.q == pytest.approx(float(0.5 * expected @ damped @ expected + problem.linear @ expected))


def test_p_is_one_on_an_undamped_quadratic_and_higher_where_damping_hides_progress():
    _, report, _ = take(quadratic_problem(), rn.Tikhonov(0.0))
    assert report.p == pytest.approx(1.0)
    _, report, _ = take(quadratic_problem(), rn.Tikhonov(3.0))
    assert report.p > 1.0


def test_line_search_damping_on_a_quadratic_reproduces_plain_cg():
    settings = replace(EXACT, cg=replace(EXACT.cg, iterations=5))
    plain, searched = quadratic_problem(), quadratic_problem()
    take(plain, rn.Tikhonov(0.0), settings)
    _, report, _ = take(searched, rn.LineSearch(0.8), settings)
    assert torch.allclose(plain.theta, searched.theta, atol=1e-12)
    assert report.losses >= 2 * report.cg_iterations


def test_line_search_damping_stalls_by_name_and_the_step_is_refused():
    """A loss that rises in every direction: after six stalled directions the run ends, the weights stay."""
    problem = quadratic_problem(20)
    problem.value = lambda theta: 10.0 + float(theta.norm())
    before = problem.read()
    _, report, _ = take(problem, rn.LineSearch(0.8))
    assert report.cg_reason == "line search stalled"
    assert report.cg_iterations == 6
    assert not report.accepted
    assert torch.equal(problem.theta, before)


def test_a_refused_step_leaves_the_weights_to_the_bit_and_grows_the_damping():
    problem = quadratic_problem()
    problem.theta = torch.rand(8, dtype=torch.float64)
    before = problem.read()
    start = problem.value(before)
    problem.value = lambda theta: start + float((theta - before).norm())
    memory, report, _ = take(problem, rn.Tikhonov(0.1), memory=Memory(rn.Tikhonov(0.1), rn.Tikhonov(0.1)))
    assert not report.accepted
    assert (report.step_size, report.loss_after) == (0.0, report.loss_before)
    assert report.refused
    assert torch.equal(problem.theta, before)
    assert memory.damping.lam == pytest.approx(0.225)
    assert memory.last is None, "a refused step leaves no warm start"


def test_a_cut_step_scales_the_warm_start():
    problem = quadratic_problem()
    problem.value = lambda theta: 1.0 + float((theta.norm() - 1.0) ** 2)
    memory, report, _ = take(problem, rn.Tikhonov(0.0))
    assert 0 < report.step_size < 1
    assert torch.allclose(memory.last, problem.theta, atol=1e-12)


def test_warm_start_begins_from_the_last_solution_times_the_decay():
    problem = quadratic_problem()
    last = torch.linalg.solve(problem.hessian, -problem.linear) / 0.95
    memory = Memory(rn.Tikhonov(0.0), rn.Tikhonov(0.0), last=last)
    _, report, _ = take(problem, rn.Tikhonov(0.0), replace(EXACT, trace=True), memory)
    assert report.trace[0].q == pytest.approx(report.q), "the first iterate is the answer already"
    assert report.trace[0].iteration == 0


def test_a_warm_start_that_promises_nothing_is_dropped():
    problem = quadratic_problem()
    uphill = 100 * torch.linalg.solve(problem.hessian, problem.linear)
    settings = replace(EXACT, cg=replace(EXACT.cg, iterations=2))
    _, report, _ = take(
        problem, rn.Tikhonov(0.0), settings, Memory(rn.Tikhonov(0.0), rn.Tikhonov(0.0), last=uphill)
    )
    other = quadratic_problem()
    take(other, rn.Tikhonov(0.0), settings)
    assert torch.equal(problem.theta, other.theta)
    assert report.products == 3, "one product was spent on finding out"


def test_zero_gradient_is_no_failure():
    problem = quadratic_problem()
    problem.linear = torch.zeros(8, dtype=torch.float64)
    memory, report, _ = take(problem, rn.Tikhonov(0.1))
    assert (report.accepted, report.cg_reason, report.cg_iterations) == (False, "zero residual", 0)
    assert memory.failures == 0
    assert memory.damping.lam == 0.1
    assert "nothing to do" in report.refused


def test_negative_curvature_is_named_and_the_step_before_it_is_taken():
    problem = QuadraticProblem(
        torch.diag(torch.tensor([4.0, 1.0, -1.0])).double(), torch.tensor([3.0, 1.0, 0.1]).double()
    )
    _, report, _ = take(problem, rn.Tikhonov(0.0))
    assert report.cg_reason == "negative curvature"
    assert report.accepted


def test_non_finite_weights_are_named_and_left_alone():
    problem = quadratic_problem()
    problem.linear[0] = math.nan
    _, report, _ = take(problem, rn.Tikhonov(0.1))
    assert (report.cg_reason, report.accepted) == ("non-finite", False)
    assert "not finite" in report.refused
    assert torch.equal(problem.theta, torch.zeros(8, dtype=torch.float64))
    assert report.as_dict()["loss_before"] is None


def test_structural_damping_stops_when_the_quadratic_is_not_trusted():
    """A loss that the quadratic says nothing about: p < 1/4 at iterations 2, 4, 6 brings mu to 3·mu0."""
    problem = quadratic_problem(30)
    problem.value = lambda theta: 10.0 - 1e-3 * float(theta.norm())
    settings = replace(EXACT, trace=True)
    memory, report, _ = take(problem, rn.Structural(0.1, watch=2), settings)
    assert report.cg_reason == "quadratic not trusted"
    assert report.cg_iterations == 6
    assert report.mu == 0.1
    assert memory.damping.mu == pytest.approx(0.3)
    watched = [(t.iteration, t.mu) for t in report.trace if t.p is not None]
    assert watched == [(2, pytest.approx(0.15)), (4, pytest.approx(0.225)), (6, pytest.approx(0.3))]


def test_the_curvature_keeps_mu0_inside_a_run():
    problem = quadratic_problem(10)
    take(problem, rn.Structural(0.5, watch=1))
    assert torch.allclose(
        problem.theta,
        torch.linalg.solve(problem.hessian + 0.5 * torch.eye(10).double(), -problem.linear),
        atol=1e-9,
    )


def test_work_by_hand():
    """n_j = 90, n_c = 30, 3 iterations from zero: 90 + 30/3 (forward) + 3·(4/3)·30 + 1 loss on n_c + the
    tries on n_j.
    """
    problem = quadratic_problem()
    settings = replace(EXACT, cg=replace(EXACT.cg, iterations=3), epoch_characters=180)
    memory, report, ticks = take(problem, rn.Tikhonov(0.0), settings, batch=90, curvature=30)
    tries = report.losses - 1
    assert report.work_characters == pytest.approx(90 + 10 + 120 + 10 + tries * 30)
    assert report.work == pytest.approx(report.work_characters / 180)
    assert report.products == 3
    assert report.products_of == {"conjugate gradient": 3}
    assert (report.gradient_scored, report.curvature_scored, report.characters) == (90, 30, 90)
    assert [tick.iteration for tick in ticks] == [1, 2, 3]
    assert all(tick.limit == 3 and tick.step == 1 for tick in ticks)
    assert memory.work == report.work_characters


def test_ratio_on_the_gradient_batch_needs_no_loss_of_its_own():
    settings = replace(EXACT, ratio="gradient")
    _, report, _ = take(quadratic_problem(), rn.Tikhonov(0.0), settings)
    assert report.p == pytest.approx(1.0)
    _, other, _ = take(quadratic_problem(), rn.Tikhonov(0.0))
    assert other.losses == report.losses + 1


def test_slope_corrected_ratio_is_one_where_only_the_slopes_differ():
    """The curvature batch's gradient is off by a constant; f̃ does not see it."""

    class Tilted(QuadraticProblem):
        tilt = 0.3

        def linearize(self, batch):
            self.shift = self.tilt if batch == 50 else 0.0
            point = super().linearize(batch)
            gradient = point.gradient() + self.shift
            point.gradient = lambda: gradient
            return point

        def loss(self, batch):
            return self.value(self.theta) + (self.tilt * float(self.theta.sum()) if batch == 50 else 0.0)

    problem = Tilted(*random_quadratic(8, 0))
    _, report, _ = take(problem, rn.Tikhonov(0.0), replace(EXACT, ratio="corrected"))
    assert report.p == pytest.approx(1.0)
    problem = Tilted(*random_quadratic(8, 0))
    _, report, _ = take(problem, rn.Tikhonov(0.0))
    assert report.p != pytest.approx(1.0, abs=1e-3)


def test_armijo_and_cg_backtracking_are_options():
    final = FinalStepSettings(iterate="backtracking", rule="armijo")
    problem = quadratic_problem()
    _, report, _ = take(problem, rn.Tikhonov(0.0), replace(EXACT, final=final))
    assert torch.allclose(problem.theta, torch.linalg.solve(problem.hessian, -problem.linear), atol=1e-8)
    assert report.accepted


def test_cg_backtracking_walks_back_while_the_loss_falls():
    kept = [(torch.tensor([float(i)]), -float(i)) for i in (1, 2, 3, 4)]
    losses = {1.0: 0.9, 2.0: 0.1, 3.0: 0.2, 4.0: 0.5, 5.0: 0.7}
    x, q = best_kept(kept, (torch.tensor([5.0]), -5.0), lambda x: losses[float(x)])
    assert (float(x), q) == (2.0, -2.0)
    losses = {1.0: 0.0, 2.0: 0.1, 3.0: 0.2, 4.0: 0.8, 5.0: 0.7}
    assert float(best_kept(kept, (torch.tensor([5.0]), -5.0), lambda x: losses[float(x)])[0]) == 5.0


def test_two_batches_correct_the_length():
    """The second batch has twice the curvature, so that the step is half as long."""

    class Split(QuadraticProblem):
        def linearize(self, batch):
            point = super().linearize(batch)
            if batch == 77:
                single = point.gauss_newton
                point.gauss_newton = lambda v, **terms: 2 * single(v, **terms)
            return point

        def subset(self, batch, fraction, generator):
            return 77

    settings = replace(EXACT, curvature=CurvatureSettings(correction=True))
    problem = Split(*random_quadratic(8, 0))
    _, report, _ = take(problem, rn.Tikhonov(0.0), settings)
    assert report.products_of["step length"] == 1
    expected = torch.linalg.solve(problem.hessian, -problem.linear) / 2
    assert torch.allclose(problem.theta, expected, atol=1e-9)


def test_lbfgs_pairs_are_handed_over():
    preconditioner = Krylov()
    take(quadratic_problem(), rn.Tikhonov(0.1), preconditioner=preconditioner)
    assert len(preconditioner.state_dict()["directions"]) >= 8


def test_recovery_after_three_empty_steps():
    settings = replace(EXACT, recovery=RecoverySettings(after=3), trace=False)
    problem = quadratic_problem()
    problem.value = lambda theta: 10.0 + float(theta.norm())
    memory = Memory(rn.Tikhonov(0.1), rn.Tikhonov(0.1), last=torch.ones(8, dtype=torch.float64))
    reports, widenings = [], []
    for _ in range(6):
        memory, report, _ = take(problem, memory.damping, settings, memory)
        reports.append(report)
        widenings.append(memory.widening)
    assert [r.recovery is not None for r in reports] == [False, False, True, False, False, True]
    assert "warm start dropped" in reports[2].recovery
    factors = [0.1, 0.1 * 1.5**2, 0.1 * 1.5**6]
    assert [r.lambda_ for r in reports[:3]] == pytest.approx(factors), "each failure grows it more"
    assert reports[3].lambda_ == 0.1, "back to where it last worked"
    assert memory.damping.lam == pytest.approx(0.225), "a second recovery tries more damping"
    assert widenings == [1, 1, 2, 2, 2, 4]
    assert [r.curvature_scored for r in reports] == [50, 50, 50, 100, 100, 100], "more of the gradient batch"
    del problem.value
    memory, report, _ = take(problem, memory.damping, settings, memory)
    assert report.accepted
    assert memory.failures == 0
    assert memory.widening < 4


def test_average_without_the_bias_of_its_start():
    """Decay 1/2: weights 1, 1/2, 1/4 … of the newest, the second newest …"""
    average = Average(0.5)
    for value in (1.0, 2.0, 4.0):
        average.add(torch.tensor([value]))
    assert float(average.value) == pytest.approx((4 + 2 / 2 + 1 / 4) / (1 + 1 / 2 + 1 / 4))
