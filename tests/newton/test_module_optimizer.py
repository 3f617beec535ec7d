"""The optimiser on plain modules, end to end."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import rnnewton as rn
from rnnewton.newton.preconditioning import Krylov
from rnnewton.newton.settings import HessianFreeSettings


class Characters(nn.Module):
    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 6)
        self.layer = layer(6, 12, batch_first=True)
        self.out = nn.Linear(12, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(ids))[0]).transpose(1, 2)


def repeated(count: int = 16) -> tuple[Tensor, Tensor]:
    """abcd from a random place, over and over: what comes next is certain."""
    ids = (torch.randint(0, 4, (count, 1)) + torch.arange(13)) % 4
    return ids[:, :-1], ids[:, 1:]


def regression() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    module = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
    x = torch.linspace(-1, 1, 40)[:, None]
    return module, (x, torch.sin(3 * x))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_learn_a_pattern_in_single_precision(layer: type[nn.RNNBase]):
    module, batch = Characters(layer), repeated()
    optimizer = rn.HessianFree(module, nn.CrossEntropyLoss())
    first = optimizer.step(batch)
    for _ in range(9):
        last = optimizer.step(batch)
    assert first.loss_before > 1.3 and last.loss_after < 0.02
    assert module.training


@pytest.mark.parametrize("preconditioner", ["none", "diagonal", "krylov", "kronecker"])
def test_every_preconditioner_fits_a_curve(preconditioner: str):
    module, batch = regression()
    optimizer = rn.HessianFree(module, nn.MSELoss(), preconditioner=preconditioner)
    for _ in range(25):
        report = optimizer.step(batch)
    assert report.loss_after < 1e-3
    value = nn.functional.mse_loss(module(batch[0]), batch[1]).item()
    assert value == pytest.approx(report.loss_after, rel=1e-5)


def test_attention_and_convolution_learn():
    x = torch.randn(32, 5, 8)
    y = x.flip(1).cumsum(1)
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    optimizer = rn.HessianFree(attention, nn.MSELoss())
    before = optimizer.step((x, y)).loss_before
    for _ in range(5):
        report = optimizer.step((x, y))
    assert report.loss_after < 0.7 * before
    image, label = torch.randn(32, 1, 6, 6), torch.randint(0, 3, (32,))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = rn.HessianFree(net, nn.CrossEntropyLoss(), preconditioner="kronecker")
    for _ in range(8):
        report = optimizer.step((image, label))
    assert report.loss_after < 0.1


def test_tied_and_frozen_parameters_stay_so():
    module = nn.Sequential(nn.Embedding(6, 5), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 6, bias=False))
    module[3].weight = module[0].weight
    module[1].bias.requires_grad_(False)
    frozen = module[1].bias.detach().clone()
    optimizer = rn.HessianFree(module, nn.CrossEntropyLoss())
    ids = torch.randint(0, 6, (50,))
    for _ in range(5):
        report = optimizer.step((ids, (ids + 1) % 6))
    assert module[3].weight is module[0].weight and torch.equal(module[1].bias, frozen)
    assert report.loss_after < report.loss_before < 1.5


def test_structural_damping_of_named_states():
    module, batch = regression()
    optimizer = rn.HessianFree(
        module, nn.MSELoss(), damping=rn.Structural(0.1, states=["1"]) + rn.Tikhonov(0.01)
    )
    for _ in range(15):
        report = optimizer.step(batch)
    assert report.mu is not None and report.loss_after < 0.01
    with pytest.raises(ValueError, match="states"):
        rn.HessianFree(module, nn.MSELoss(), damping=rn.Structural(0.1))


@pytest.mark.parametrize("preconditioner", ["krylov", "kronecker"])
def test_a_resumed_run_continues_to_the_bit(preconditioner: str):
    module, batch = Characters(nn.LSTM), repeated()
    settings = HessianFreeSettings(averaging=0.9)
    optimizer = rn.HessianFree(
        module, nn.CrossEntropyLoss(), preconditioner=preconditioner, settings=settings
    )
    for _ in range(3):
        optimizer.step(batch)
    weights = copy.deepcopy(module.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        optimizer.step(batch)
    again = Characters(nn.LSTM)
    again.load_state_dict(weights)
    resumed = rn.HessianFree(again, nn.CrossEntropyLoss(), preconditioner=preconditioner, settings=settings)
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step(batch)
    for (name, a), b in zip(module.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(optimizer.average, resumed.average)


def test_krylov_sees_the_run_of_the_optimizer():
    module, batch = regression()
    krylov = Krylov()
    optimizer = rn.HessianFree(module, nn.MSELoss(), preconditioner=krylov)
    optimizer.step(batch)
    assert 1 <= len(krylov.state_dict()["directions"]) <= krylov.pairs


def test_a_stochastic_module_is_refused_and_nothing_moves():
    module = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    before = copy.deepcopy(module.state_dict())
    optimizer = rn.HessianFree(module, nn.MSELoss())
    with pytest.raises(ValueError, match="Dropout '1' drops units at random"):
        optimizer.step(regression()[1])
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items()) and module.training
    module.eval()
    assert optimizer.step(regression()[1]).accepted and not module.training


def test_batches_in_chunks_take_the_same_step():
    module, (x, y) = regression()
    other = copy.deepcopy(module)
    rn.HessianFree(module.double(), nn.MSELoss()).step((x.double(), y.double()))
    chunks = [(a.double(), b.double()) for a, b in zip(x.split(15), y.split(15), strict=True)]
    rn.HessianFree(other.double(), nn.MSELoss()).step(chunks)
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
