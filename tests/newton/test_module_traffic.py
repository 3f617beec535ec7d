from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rnnewton.newton.module import ModuleProblem
from rnnewton.newton.preconditioning import Diagonal, Kronecker, KroneckerSettings
from rnnewton.newton.problem import WeightTraffic

from .module_tools import flat_gradient, product_matrix
from .preconditioning.traffic import FakeLinearization


def traffic(module: nn.Module, loss: object, *batch: object) -> dict[str, WeightTraffic]:
    linearization = ModuleProblem(module, loss).linearize(batch)
    return {weight.name: weight for chunk in linearization.traffic(None) for weight in chunk}


def flowing_gradient(weight: WeightTraffic) -> Tensor:
    inputs = weight.inputs
    if not inputs.is_floating_point():
        inputs = nn.functional.one_hot(inputs, weight.columns).to(weight.deltas.dtype)
    gradient = torch.einsum("tbr,tbc->rc", weight.deltas, inputs)
    return gradient.mT if weight.transposed else gradient


class Characters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3, padding_idx=0)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(ids))[0]).mT


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2)
        self.plane = nn.Conv2d(1, 2, (2, 3), stride=(1, 2), padding=(1, 0), bias=False)
        self.grouped = nn.Conv1d(3, 3, 1, groups=3)
        self.out = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        line = self.grouped(torch.tanh(self.line(x)))
        return self.out(self.plane(line.unsqueeze(1)).mean((2, 3)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden.tanh_()
        out = self.second(hidden)
        out *= 2
        out += x
        return out


CASES = {
    "characters": (Characters, nn.CrossEntropyLoss(), torch.tensor([[1, 2, 0], [4, 1, 1]])),
    "convolutions": (Convolutions, nn.MSELoss(), torch.randn(3, 2, 9)),
    "one layer twice": (Twice, nn.MSELoss(), torch.randn(4, 3)),
    "changed in place": (InPlace, nn.MSELoss(), torch.randn(4, 3)),
    "one vector": (lambda: nn.Linear(3, 2), nn.MSELoss(), torch.randn(3)),
}
EXPECTED = {
    "characters": {"embed.weight", "out.weight", "out.bias"},
    "convolutions": {"line.weight", "line.bias", "plane.weight", "out.weight", "out.bias"},
    "one layer twice": {"layer.weight", "layer.bias"},
    "changed in place": {"first.weight", "first.bias", "second.weight", "second.bias"},
    "one vector": {"weight", "bias"},
}


@pytest.mark.parametrize("name", CASES)
def test_inputs_and_deltas_make_the_gradient(name: str):
    build, loss, inputs = CASES[name]
    module = build().double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    outputs = module(inputs)
    targets = torch.randint(0, 5, inputs.shape) if name == "characters" else torch.randn_like(outputs)
    flat = flat_gradient(module, loss(module(inputs), targets))
    found = traffic(module, loss, inputs, targets)
    assert set(found) == EXPECTED[name]
    linearization = ModuleProblem(module, loss).linearize((inputs, targets))
    for weight in found.values():
        expected = flat[weight.start : weight.start + weight.rows * weight.columns]
        mine = flowing_gradient(weight).flatten() / linearization.count
        torch.testing.assert_close(mine, expected, msg=weight.name)
        assert weight.deltas.shape[:2] == weight.inputs.shape[:2]


def test_examples_become_sequences():
    found = traffic(
        Characters().double(), nn.CrossEntropyLoss(), torch.ones(2, 7).long(), torch.ones(2, 7).long()
    )
    assert found["embed.weight"].inputs.shape == (7, 2) and found["out.weight"].deltas.shape == (7, 2, 5)


def test_shared_and_frozen_weights_have_no_traffic():
    module = Characters().double()
    module.out = nn.Linear(3, 5, bias=False).double()
    module.out.weight = module.embed.weight
    module.lstm = nn.LSTM(3, 4, proj_size=3, batch_first=True).double()
    assert not traffic(module, nn.CrossEntropyLoss(), torch.ones(2, 3).long(), torch.ones(2, 3).long())
    module = Twice().double()
    module.layer.weight.requires_grad_(False)
    assert not traffic(module, nn.MSELoss(), torch.randn(2, 3).double(), torch.randn(2, 3).double())
    module = InPlace().double()
    module.first.bias.requires_grad_(False)
    found = traffic(module, nn.MSELoss(), torch.randn(2, 3).double(), torch.randn(2, 3).double())
    assert {name: weight.start for name, weight in found.items()} == {
        "first.weight": 0,
        "second.weight": 12,
        "second.bias": 24,
    }


def test_kronecker_on_a_linear_layer_is_the_exact_fisher_in_the_mean():
    """One linear layer with squared errors: G = A ⊗ 2I/outputs, which is a Kronecker product."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2, bias=False).double()
    inputs = torch.randn(400, 3, dtype=torch.float64) * torch.tensor([1.0, 3.0, 0.2], dtype=torch.float64)
    problem = ModuleProblem(module, nn.MSELoss())
    batch = (inputs, torch.randn(400, 2, dtype=torch.float64))
    dense = product_matrix(problem, batch)
    kron = Kronecker(KroneckerSettings(decay=0.999))
    g = torch.Generator().manual_seed(0)
    linearization = problem.linearize(batch)
    for _ in range(100):
        kron.update(linearization, g)
    mine = torch.stack([kron.metric(e) for e in torch.eye(6, dtype=torch.float64)], 1)
    assert float((mine - dense).norm() / dense.norm()) < 0.02
    assert abs(kron.mean() / float(dense.trace() / 6) - 1) < 0.02


def test_embeddings_are_stored_the_other_way_round():
    """M of an embedding is that of a look-up, with rows and columns exchanged in the flat vector."""
    torch.manual_seed(0)
    ids = torch.randint(0, 4, (5, 3))
    module = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4)).double()
    targets = torch.randint(0, 4, (5, 4, 3)).double()

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(z.mT, y)

    linearization = ModuleProblem(module, loss).linearize((ids, targets))
    weight = next(iter(linearization.traffic(None)))[0]
    plain = WeightTraffic("W", 0, weight.rows, weight.columns, weight.inputs, weight.deltas)
    v = torch.randn(2, 4, dtype=torch.float64)
    for kind in (Kronecker, Diagonal):
        here, there = kind(), kind()
        here.update(FakeLinearization([[weight]], 15), None)
        there.update(FakeLinearization([[plain]], 15), None)
        mine = here.solve(v.mT.flatten(), 0.1).view(4, 2).mT
        torch.testing.assert_close(mine, there.solve(v.flatten(), 0.1).view(2, 4))


def test_drawn_targets_are_the_generators_and_do_not_touch_others():
    module = Characters()
    ids = torch.randint(0, 5, (4, 6))
    linearization = ModuleProblem(module, nn.CrossEntropyLoss()).linearize((ids, ids))
    state = torch.get_rng_state()
    draws = [
        next(iter(linearization.traffic(torch.Generator().manual_seed(seed))))[0].deltas for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert torch.equal(state, torch.get_rng_state())


def test_many_chunks_give_a_list_each():
    module = Twice()
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    linearization = ModuleProblem(module, nn.MSELoss()).linearize([(x[:2], y[:2]), (x[2:], y[2:])])
    sizes = [chunk[0].deltas.shape for chunk in linearization.traffic(torch.Generator())]
    assert sizes == [(2, 2, 3), (2, 4, 3)]
