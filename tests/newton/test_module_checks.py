from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rnnewton.newton.module import ModuleProblem


def batch(features: int = 3, outputs: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(6, features), torch.randn(6, outputs)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.01 * torch.randn_like(x))


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), "Dropout '1' drops units at random.*eval"),
        (nn.Sequential(nn.Linear(3, 2), nn.AlphaDropout(0.1)), "AlphaDropout '1'.*eval"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "BatchNorm1d '1'.*the others.*eval"),
        (nn.Sequential(nn.Linear(3, 2), nn.RReLU()), "RReLU '1'.*eval"),
        (Noisy(3, 2), "different values when called twice.*eval"),
        (Counting(3, 2), "different values when called twice"),
    ],
)
def test_what_is_not_one_fixed_function_is_refused(module: nn.Module, sentence: str):
    problem = ModuleProblem(module, nn.MSELoss())
    for call in (problem.linearize, problem.loss):
        with pytest.raises(ValueError, match=sentence):
            call(batch())
    if not isinstance(module, (Noisy, Counting)):
        module.eval()
        problem.linearize(batch()).gradient()


def test_batch_norm_that_has_no_running_statistics_is_refused_in_eval_too():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval()
    with pytest.raises(ValueError, match="GroupNorm"):
        ModuleProblem(module, nn.MSELoss()).loss(batch())


def test_dropout_inside_recurrent_and_attention_layers_is_found():
    stacked = nn.LSTM(3, 2, num_layers=2, dropout=0.2)
    problem = ModuleProblem(stacked, lambda outputs, y: functional.mse_loss(outputs[0], y))
    x, y = torch.randn(4, 6, 3), torch.randn(4, 6, 2)
    with pytest.raises(ValueError, match=r"LSTM drops units at random \(p=0.2\)"):
        problem.loss((x, y))
    stacked.eval()
    problem.loss((x, y))
    attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)
    with pytest.raises(ValueError, match=r"'self_attn' drops|'dropout' drops"):
        ModuleProblem(attention, nn.MSELoss()).loss((torch.randn(3, 2, 4), torch.randn(3, 2, 4)))


def test_a_change_of_mode_is_looked_at_again():
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).eval()
    problem = ModuleProblem(module, nn.MSELoss())
    problem.loss(batch())
    module.train()
    with pytest.raises(ValueError, match="Dropout"):
        problem.loss(batch())
    assert module.training


def test_dropout_of_rate_zero_and_norms_over_features_are_fine():
    module = nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.GroupNorm(2, 4), nn.Linear(4, 2)
    )
    ModuleProblem(module, nn.MSELoss()).linearize(batch()).gradient()


def test_buffers_that_a_pass_changes_come_back():
    class Tracks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            self.scale = self.scale * 1.0
            return self.layer(x) * self.scale

    module = Tracks()
    kept = module.scale
    problem = ModuleProblem(module, nn.MSELoss())
    linearization = problem.linearize(batch())
    linearization.gauss_newton(linearization.gradient())
    problem.loss(batch())
    assert float(module.seen) == 0 and module.scale is kept


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (nn.L1Loss(), "L1Loss has no curvature.*Huber"),
        (functional.l1_loss, "L1Loss has no curvature.*Huber"),
        (nn.NLLLoss(), "NLLLoss has no curvature.*CrossEntropyLoss"),
        (nn.KLDivLoss(), "KLDivLoss has no curvature.*CrossEntropyLoss"),
        (nn.MSELoss(reduction="none"), "reduction='none'"),
    ],
)
def test_losses_that_cannot_work_are_refused_when_the_problem_is_built(loss: object, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        ModuleProblem(nn.Linear(3, 2), loss)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda z, y: (z - y).abs().mean(), "no curvature in the module's outputs"),
        (lambda z, y: z.sin().sum() + 0 * y.sum(), "not convex"),
        (lambda z, y: -(z - y).square().mean(), "not convex"),
        (lambda z, y: z.square().mean() - 0.2 * z[0, 0] ** 2 + 0 * y.sum(), "not convex"),
        (lambda z, y: (z - y).square(), "instead of one number"),
        (lambda z, y: 1.0, "float instead of a tensor"),
        (lambda z, y: y.sum(), "does not depend on the module's outputs"),
    ],
)
def test_losses_of_ones_own_are_looked_at(loss: object, sentence: str):
    problem = ModuleProblem(nn.Linear(3, 2), loss)
    with pytest.raises((ValueError, TypeError), match=sentence):
        problem.linearize(batch()).gauss_newton(torch.zeros(8))


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: (z - y).square().mean(),
        lambda z, y: functional.huber_loss(z, y) + 1e-3 * z.square().mean(),
        lambda z, y: torch.logsumexp(z, 1).mean() - (z * y).mean(),
        nn.HuberLoss(delta=1e-6),  # no curvature at the start is no reason to refuse a loss that is known
    ],
)
def test_convex_losses_of_ones_own_are_taken(loss: object):
    ModuleProblem(nn.Linear(3, 2), loss).linearize(batch()).gauss_newton(torch.ones(8))


def test_modules_that_cannot_be_trained():
    frozen = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        ModuleProblem(frozen, nn.MSELoss())
    with pytest.raises(ValueError, match="no shape yet"):
        ModuleProblem(nn.LazyLinear(2), nn.MSELoss())
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).double())
    with pytest.raises(ValueError, match="one dtype"):
        ModuleProblem(mixed, nn.MSELoss())
    detached = nn.Sequential(nn.Linear(3, 2))
    detached.register_forward_hook(lambda _m, _i, out: out.detach())
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"):
        ModuleProblem(detached, nn.MSELoss()).linearize(batch()).gradient()


def test_errors_of_the_module_itself_come_through():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ModuleProblem(nn.Linear(4, 2), nn.MSELoss()).linearize(batch())


def test_works_under_no_grad():
    with torch.no_grad():
        linearization = ModuleProblem(nn.Linear(3, 2), nn.MSELoss()).linearize(batch())
        assert linearization.gauss_newton(linearization.gradient()).any()


def test_an_outlier_in_the_loss_is_nan_and_not_refused_as_random():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.fill_(float("nan"))
    assert torch.isnan(torch.tensor(ModuleProblem(module, nn.MSELoss()).loss(batch())))
