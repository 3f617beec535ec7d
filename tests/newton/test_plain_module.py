"""`HessianFree` on plain modules, end to end; the linearisation itself is tested beside `module.py`."""

import math

import pytest
import torch
from torch import nn

import rnnewton as rn
from rnnewton.newton.settings import ConjugateGradientSettings, HessianFreeSettings


def curve(count=64):
    x = torch.linspace(-1, 1, count, dtype=torch.float64)[:, None]
    return x, torch.sin(6 * x) + 0.3 * x


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)).double()


def test_one_step_is_the_dense_damped_newton_step():
    """G = Jᵀ (2/n) J by torch's own Jacobian."""
    module = net()
    x, y = curve()
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    names = [name for name, _ in module.named_parameters()]
    shapes = [p.shape for p in module.parameters()]

    def outputs(theta):
        parts = theta.split([math.prod(s) for s in shapes])
        weights = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(module, weights, (x,)).reshape(-1)

    jacobian = torch.func.jacrev(outputs)(flat)
    residual = outputs(flat) - y.reshape(-1)
    curvature = 2 / len(x) * jacobian.t() @ jacobian + 0.05 * torch.eye(len(flat), dtype=torch.float64)
    expected = torch.linalg.solve(curvature, -2 / len(x) * jacobian.t() @ residual)
    settings = HessianFreeSettings(cg=ConjugateGradientSettings(iterations=200, tolerance=1e-13))
    report = rn.HessianFree(module, nn.MSELoss(), damping=rn.Tikhonov(0.05), settings=settings).step((x, y))
    moved = torch.cat([p.detach().reshape(-1) for p in module.parameters()]) - flat
    assert report.accepted
    assert torch.allclose(moved, report.step_size * expected, atol=1e-7)


def test_a_curve_is_fitted_closer_than_adam_does_with_more_gradients():
    x, y = curve()
    module = net()
    optimizer = rn.HessianFree(module, nn.MSELoss())
    for _ in range(60):
        report = optimizer.step((x, y))
    gradients = optimizer.problem.characters((x, y))
    updates = round(report.work_characters / gradients)
    other = net()
    adam = torch.optim.Adam(other.parameters(), lr=1e-2)
    for _ in range(updates):
        adam.zero_grad()
        loss = nn.functional.mse_loss(other(x), y)
        loss.backward()
        adam.step()
    assert report.loss_after < 1e-3
    assert report.loss_after < float(loss.detach())


def test_a_run_that_has_converged_stays_where_it_is():
    """Past the rounding of the loss every step is refused or tiny; nothing grows for ever, nothing raises."""
    module = nn.Linear(3, 1).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, dtype=torch.float64, generator=generator)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64) + 0.5
    optimizer = rn.HessianFree(module, nn.MSELoss())
    reports = [optimizer.step((x, y)) for _ in range(60)]
    assert reports[-1].loss_after < 1e-12
    assert all(math.isfinite(r.lambda_) for r in reports)
    assert all(r.loss_after <= r.loss_before for r in reports)


def test_classification_in_float32_with_a_batch_split_in_chunks():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = rn.HessianFree(module, nn.CrossEntropyLoss())
    for _ in range(25):
        report = optimizer.step([(x[:120], y[:120]), (x[120:], y[120:])])
    assert report.loss_after < 0.1
    assert report.gradient_scored == 200


def test_structural_damping_of_named_states_is_felt():
    x, y = curve()
    changes = []
    for damping in (rn.Tikhonov(0.01), rn.Structural(10.0, states=("1",)) + rn.Tikhonov(0.01)):
        module = net()
        with torch.no_grad():
            before = module[1](module[0](x))
            assert rn.HessianFree(module, nn.MSELoss(), damping=damping).step((x, y)).accepted
            changes.append(float((module[1](module[0](x)) - before).norm()))
    assert changes[1] < 0.2 * changes[0]


def test_the_kronecker_preconditioner_serves_linear_layers_too():
    x, y = curve()
    module = net()
    optimizer = rn.HessianFree(module, nn.MSELoss(), preconditioner="kronecker")
    reports = [optimizer.step((x, y)) for _ in range(20)]
    assert reports[0].kappa is not None
    assert reports[-1].loss_after < 0.2 * reports[0].loss_before


def test_dropout_in_train_mode_is_refused_in_words():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)dropout|random|stochastic"):
        rn.HessianFree(module, nn.MSELoss()).step((torch.randn(9, 4), torch.randn(9, 1)))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_torch_s_own_recurrent_layers(kind):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = kind(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.out(self.layer(x)[0])

    torch.manual_seed(0)
    module = Reader()
    x = torch.randn(7, 5, 3)
    y = x.cumsum(0)[..., :2].tanh()
    optimizer = rn.HessianFree(module, nn.MSELoss())
    reports = [optimizer.step((x, y)) for _ in range(10)]
    assert reports[-1].loss_after < 0.5 * reports[0].loss_before
