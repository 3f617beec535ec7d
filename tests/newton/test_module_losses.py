"""Every loss of torch that is known: value, weights of chunks, curvature, and the covariance of drawn
deltas.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rnnewton.newton.module import ModuleProblem
from rnnewton.newton.module_losses import OutputLoss
from rnnewton.newton.module_traffic import output_deltas

from .module_tools import dense_gauss_newton, product_matrix

WEIGHTS = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 2, 2])
PROBABILITIES = torch.tensor([[0.2, 0.3, 0.5], [1, 0, 0], [0, 0.5, 0.5], [0.1, 0.8, 0.1], [0, 0, 1]]).double()

KNOWN: dict[str, tuple[Any, Tensor]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), CLASSES),
    "cross-entropy, sum": (nn.CrossEntropyLoss(reduction="sum"), CLASSES),
    "cross-entropy, weights": (nn.CrossEntropyLoss(weight=WEIGHTS), CLASSES),
    "cross-entropy, ignored": (nn.CrossEntropyLoss(ignore_index=2), CLASSES),
    "cross-entropy, smooth": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2), CLASSES),
    "cross-entropy, probabilities": (nn.CrossEntropyLoss(weight=WEIGHTS), PROBABILITIES),
    "cross-entropy, function": (partial(functional.cross_entropy, ignore_index=1), CLASSES),
    "squares": (nn.MSELoss(), PROBABILITIES),
    "squares, sum": (nn.MSELoss(reduction="sum"), PROBABILITIES),
    "squares, function": (functional.mse_loss, PROBABILITIES),
    "binary": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), PROBABILITIES),
    "huber": (nn.HuberLoss(delta=0.5), PROBABILITIES),
    "smooth absolute": (nn.SmoothL1Loss(beta=0.7), PROBABILITIES),
    "poisson": (nn.PoissonNLLLoss(), PROBABILITIES),
    "soft margin": (nn.SoftMarginLoss(), PROBABILITIES.round() * 2 - 1),
}


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


INPUTS = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", KNOWN)
def test_curvature_is_the_dense_hessian(name: str, module: nn.Module):
    loss, targets = KNOWN[name]
    problem = ModuleProblem(module, loss)
    assert problem.loss_function.kind in ("cross-entropy", "elementwise")
    scale = 1.0
    if "sum" in name:
        scale = 1 / problem.scored((INPUTS, targets))
    expected = scale * dense_gauss_newton(module, loss, INPUTS, targets)
    torch.testing.assert_close(product_matrix(problem, (INPUTS, targets)), expected)
    assert problem.loss((INPUTS, targets)) == pytest.approx(scale * loss(module(INPUTS), targets).item())


@pytest.mark.parametrize("name", KNOWN)
def test_two_chunks_are_one_batch(name: str, module: nn.Module):
    loss, targets = KNOWN[name]
    problem = ModuleProblem(module, loss)
    cut = [(INPUTS[:2], targets[:2]), (INPUTS[2:], targets[2:])]
    assert problem.loss(cut) == pytest.approx(problem.loss((INPUTS, targets)), rel=1e-12)


@pytest.mark.parametrize("name", KNOWN)
def test_drawn_deltas_have_the_covariance_of_the_hessian(name: str, module: nn.Module):
    """E δδᵀ = n H: averaged over draws, and mean zero. Five standard deviations of the sampling error."""
    loss, targets = KNOWN[name]
    problem = ModuleProblem(module, loss)
    linearization = problem.linearize((INPUTS, targets))
    point, _ = next(linearization._each())
    n, divisor = linearization.count, linearization._divisor()
    factor = 1.0 if "sum" not in name else 1 / n
    z = point.outputs[0].detach()
    hessian = (
        factor
        * n
        * torch.autograd.functional.hessian(lambda flat: loss(flat.view_as(z), targets), z.flatten())
    )
    g = torch.Generator().manual_seed(0)
    draws = torch.stack([output_deltas(point, divisor, n, g)[0].flatten() for _ in range(4000)])
    covariance = draws.T @ draws / len(draws)
    spread = (draws[:, :, None] * draws[:, None, :]).std(0) / len(draws) ** 0.5
    assert bool(((covariance - hessian).abs() <= 5 * spread + 1e-9).all())
    assert bool((draws.mean(0).abs() <= 5 * draws.std(0) / len(draws) ** 0.5 + 1e-9).all())


def test_true_targets_give_the_gradient(module: nn.Module):
    for name in ("cross-entropy, weights", "squares", "squares, sum"):
        loss, targets = KNOWN[name]
        linearization = ModuleProblem(module, loss).linearize((INPUTS, targets))
        weight = next(iter(linearization.traffic(None)))[0]
        gradient = torch.einsum("tbr,tbc->rc", weight.deltas, weight.inputs).flatten() / linearization.count
        torch.testing.assert_close(gradient, linearization.gradient()[:12])


def test_sequences_of_classes_in_torchs_layout():
    """Logits (B, C, T): the classes are dimension 1."""
    loss = OutputLoss(nn.CrossEntropyLoss())
    logits, targets = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2, -100], [1, 1, 0, 0]])
    assert loss.scored(None, targets).elements == 7
    assert loss.position_weights(logits, targets).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_what_users_losses_score():
    def own(z: Tensor, y: Any) -> Tensor:
        return z.square().mean()

    loss = OutputLoss(own)
    assert loss.kind == "user" and loss.reduction == "mean"
    assert loss.scored(None, torch.tensor([1, -100, 2])).elements == 2
    assert loss.scored(None, (torch.zeros(3, 2), torch.zeros(7))).elements == 6
    assert loss.scored(torch.zeros(9, 2), None).elements == 9


def test_values_are_summed_in_double():
    loss = OutputLoss(nn.MSELoss())
    z, y = torch.full((10_000,), 0.1), torch.zeros(10_000)
    exact = float(torch.tensor(0.1).double() ** 2)
    assert float(loss.in_float64(z, y)) == pytest.approx(exact, rel=1e-15)
    weighted = OutputLoss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])))
    assert weighted.in_float64(torch.zeros(2, 2), torch.tensor([0, 1])).dtype == torch.float64

    def stubborn(z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0]))

    value = OutputLoss(stubborn).in_float64(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(0.6931, abs=1e-4)
