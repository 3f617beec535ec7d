"""Regularisation: one function between two draws, with exactly its gradient and its Gauss-Newton product."""

import pytest
import torch
from torch import Tensor

from rnnewton.lab.regularization import RegularizedModel
from rnnewton.lab.settings import RegularizationSettings
from rnnewton.newton.problem import LinearizableProblem
from rnnewton.recurrent.model import RecurrentModel

ALL = RegularizationSettings(weight_decay=0.01, weight_noise=0.05, dropout=0.4)


def problem_of(
    settings: RegularizationSettings = ALL, direct_input: bool = True
) -> tuple[RegularizedModel, LinearizableProblem, tuple[Tensor, Tensor]]:
    model = RecurrentModel("mlstm", (4, 3), 5, 5, seed=1, direct_input=direct_input).double()
    regularized = RegularizedModel(model, settings, seed=2)
    regularized.redraw()
    ids = torch.randint(0, 5, (7, 3), generator=torch.Generator().manual_seed(0))
    return regularized, LinearizableProblem(regularized), (ids[:-1], ids[1:])


@pytest.mark.parametrize("direct_input", [True, False])
def test_gradient_is_that_of_the_loss(direct_input: bool) -> None:
    _, problem, batch = problem_of(direct_input=direct_input)
    theta = problem.read()
    gradient = problem.linearize(batch).gradient()
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        v = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        step = 1e-5
        up, down = problem.loss_at(theta + step * v, batch), problem.loss_at(theta - step * v, batch)
        assert float(gradient @ v) == pytest.approx((up - down) / (2 * step), rel=1e-7, abs=1e-9)


def test_the_product_is_symmetric_and_holds_decay_and_masks() -> None:
    regularized, problem, batch = problem_of()
    point = problem.linearize(batch)
    generator = torch.Generator().manual_seed(5)
    v, w = (torch.randn(problem.size, generator=generator, dtype=torch.float64) for _ in range(2))
    product = point.gauss_newton(v, tikhonov=0.1, structural=0.2)
    assert float(w @ product) == pytest.approx(
        float(v @ point.gauss_newton(w, tikhonov=0.1, structural=0.2)), rel=1e-10
    )
    hidden = (regularized._perturbation.mask == 0).nonzero()[0, 0]
    only = torch.zeros(problem.size, dtype=torch.float64)
    only[hidden] = 1.0  # a weight that the network does not see has no curvature but the decay's
    assert torch.allclose(point.gauss_newton(only), 0.01 * only, atol=1e-15)


def test_two_points_at_the_same_weights_hold_together() -> None:
    _, problem, batch = problem_of()
    first = problem.linearize(batch)
    gradient = first.gradient()
    problem.loss_at(torch.zeros(problem.size, dtype=torch.float64), batch)
    problem.linearize(batch)
    assert torch.equal(first.gradient(), gradient)


def test_a_draw_is_another_function_and_none_is_the_plain_one() -> None:
    regularized, problem, batch = problem_of()
    before = problem.loss(batch)
    assert problem.loss(batch) == before
    regularized.redraw()
    assert problem.loss(batch) != before
    plain, plain_problem, batch = problem_of(RegularizationSettings(weight_decay=0.0))
    theta = plain_problem.read()
    assert plain_problem.loss(batch) == LinearizableProblem(plain.network).loss_at(theta, batch)


def test_a_unit_is_hidden_upwards_and_never_from_its_own_future() -> None:
    regularized, _, _ = problem_of(RegularizationSettings(dropout=0.5))
    mask = regularized._perturbation.mask
    assert mask is not None
    sizes = [p.numel() for _, p in regularized.named_parameters()]
    for (name, parameter), piece in zip(regularized.named_parameters(), mask.split(sizes), strict=True):
        columns = piece.view(parameter.shape)
        assert torch.equal(columns, columns[:1].expand_as(columns))  # whole units
        upwards = name.endswith(("W_oh", "l"))
        assert bool((piece == 0).any()) <= upwards
        if not upwards:
            assert bool((piece == 1).all())


def test_random_state_comes_back() -> None:
    regularized, problem, batch = problem_of()
    state = regularized.state_dict()
    regularized.redraw()
    expected = problem.loss(batch)
    regularized.load_state_dict(state)
    regularized.redraw()
    assert problem.loss(batch) == expected
