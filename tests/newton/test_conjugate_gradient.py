"""Conjugate gradient against direct solves, and its named ends."""

from itertools import islice

import pytest
import torch

from rnnewton.newton.conjugate_gradient import conjugate_gradient

from .problems import random_quadratic


def run(a, b, iterations, **options):
    return list(islice(conjugate_gradient(lambda v: a @ v, b, **options), iterations + 1))


@pytest.mark.parametrize("size", [1, 2, 7, 30])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warm", [False, True])
def test_matches_a_direct_solve(size, seed, warm):
    a, b = random_quadratic(size, seed)
    start = (
        torch.randn(size, dtype=a.dtype, generator=torch.Generator().manual_seed(seed + 10)) if warm else None
    )
    last = run(a, b, size + 3, start=start)[-1]
    assert torch.allclose(last.x, torch.linalg.solve(a, -b), atol=1e-8)


def test_preconditioner_does_not_change_the_answer_and_an_exact_one_needs_one_iteration():
    a, b = random_quadratic(20, 1)
    exact = torch.linalg.solve(a, -b)
    diagonal = a.diagonal()
    assert torch.allclose(run(a, b, 25, solve=lambda r: r / diagonal)[-1].x, exact, atol=1e-8)
    inverse = torch.linalg.inv(a)
    assert torch.allclose(run(a, b, 1, solve=lambda r: inverse @ r)[-1].x, exact, atol=1e-8)


def test_directions_are_conjugate_and_q_is_that_of_x():
    a, b = random_quadratic(12, 2)
    start = torch.ones(12, dtype=a.dtype)
    iterates = run(a, b, 8, start=start)
    for iterate in iterates:
        q = 0.5 * iterate.x @ a @ iterate.x + b @ iterate.x
        assert iterate.q == pytest.approx(float(q), abs=1e-10)
    directions = torch.stack([i.direction for i in iterates[1:]])
    products = directions @ a @ directions.t()
    off = products - products.diagonal().diag()
    assert off.abs().max() < 1e-8 * products.diagonal().max()


def test_by_hand():
    """A = diag(1, 4), b = (−1, −4), x₀ = 0. S₁ = (1, 4), SᵀAS = 65, α = 17/65, q(1) = −17²/(2·65)."""
    a, b = torch.diag(torch.tensor([1.0, 4.0])).double(), torch.tensor([-1.0, -4.0]).double()
    first, second = run(a, b, 2)[1:]
    assert first.alpha == pytest.approx(17 / 65)
    assert first.q == pytest.approx(-289 / 130)
    assert torch.allclose(second.x, torch.ones(2).double())
    assert second.q == pytest.approx(-2.5)


def test_the_true_residual_replaces_the_carried_one():
    """float32 and a bad condition: the carried residual drifts, the refreshed one is what it says."""
    a, b = random_quadratic(60, 3, dtype=torch.float32, damping=1e-4)
    calls = []
    iterates = conjugate_gradient(lambda v: calls.append(1) or a @ v, b, refresh=10)
    last = list(islice(iterates, 41))[-1]
    assert len(calls) == 40 + 4
    assert torch.equal(last.residual, a @ last.x + b)


def test_zero_slope_ends_at_once():
    a, _ = random_quadratic(4, 0)
    first, last = run(a, torch.zeros(4, dtype=a.dtype), 5)
    assert first.ended is None
    assert (last.index, last.ended) == (0, "zero residual")


def test_exactly_solved_start_ends_with_zero_residual():
    a, b = torch.eye(3).double() * 2, torch.tensor([2.0, -4.0, 8.0]).double()
    last = run(a, b, 5, start=-b / 2)[-1]
    assert (last.index, last.ended) == (0, "zero residual")
    last = run(a, b, 5)[-1]
    assert (last.index, last.ended) == (1, "zero residual")
    assert torch.equal(last.x, -b / 2)


def test_negative_curvature_keeps_the_last_good_iterate():
    a, b = torch.diag(torch.tensor([4.0, 1.0, -1.0])).double(), torch.tensor([3.0, 1.0, 0.1]).double()
    iterates = run(a, b, 10)
    last = iterates[-1]
    assert last.ended == "negative curvature"
    assert last.index >= 1
    assert torch.equal(last.x, iterates[-2].x)


def test_no_curvature_and_non_finite_values_have_names():
    b = torch.tensor([1.0, 1.0]).double()
    assert run(torch.zeros(2, 2).double(), b, 3)[-1].ended == "no curvature"
    a = torch.tensor([[1.0, 0.0], [0.0, float("nan")]]).double()
    assert run(a, b, 3)[-1].ended == "non-finite"
    assert run(torch.eye(2).double(), b * float("inf"), 3)[-1].ended == "non-finite"


def test_one_read_of_the_host_an_iteration(monkeypatch):
    a, b = random_quadratic(10, 4)
    reads = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(1) or original(self))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("a second read"))
    run(a, b, 5)
    assert len(reads) == 5
