from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rnnewton.newton.module import ModuleProblem
from rnnewton.newton.problem import Linearization, Problem, problem_of

from .module_tools import dense_gauss_newton, flat_gradient, jacobian, product_matrix


class Recurrent(nn.Module):
    """nn.LSTM returns (outputs, state): this takes what it needs."""

    def __init__(self, layer: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.attend(x, other, other, need_weights=False)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.middle = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.embed(ids))))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden.tanh_()
        out = self.second(hidden)
        out += x[:, :2]
        return out


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ELU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).eval()


def shifted_norm(module: nn.Module) -> nn.Module:
    """Buffers that matter."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return module


def classes(*shape: int, count: int) -> Tensor:
    return torch.randint(0, count, shape)


CASES: dict[str, Callable[[], tuple[nn.Module, Any, Any, Any]]] = {
    "feed-forward": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)),
        nn.CrossEntropyLoss(),
        torch.randn(6, 3),
        classes(6, count=3),
    ),
    "convolution": lambda: (
        shifted_norm(conv_net()),
        nn.CrossEntropyLoss(),
        torch.randn(4, 1, 4, 4),
        classes(4, count=3),
    ),
    "attention, two inputs": lambda: (
        Attention(),
        nn.MSELoss(),
        (torch.randn(2, 3, 4), torch.randn(2, 5, 4)),
        torch.randn(2, 3, 4),
    ),
    "encoder layer in eval": lambda: (
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True).eval(),
        nn.MSELoss(),
        torch.randn(2, 3, 4),
        torch.randn(2, 3, 4),
    ),
    "encoder layer in train": lambda: (
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, activation="gelu"),
        nn.MSELoss(),
        torch.randn(3, 2, 4),
        torch.randn(3, 2, 4),
    ),
    "lstm": lambda: (
        Recurrent(nn.LSTM(3, 4, num_layers=2, batch_first=True), 4),
        nn.MSELoss(),
        torch.randn(2, 5, 3),
        torch.randn(2, 5, 2),
    ),
    "lstm, projected, two ways": lambda: (
        Recurrent(nn.LSTM(3, 4, proj_size=2, bidirectional=True), 4),
        nn.MSELoss(),
        torch.randn(4, 2, 3),
        torch.randn(4, 2, 2),
    ),
    "gru": lambda: (
        Recurrent(nn.GRU(3, 4), 4),
        nn.BCEWithLogitsLoss(),
        torch.randn(4, 2, 3),
        torch.rand(4, 2, 2),
    ),
    "rnn": lambda: (Recurrent(nn.RNN(3, 4), 4), nn.MSELoss(), torch.randn(4, 2, 3), torch.randn(4, 2, 2)),
    "tied": lambda: (Tied(), nn.CrossEntropyLoss(), classes(6, count=5), classes(6, count=5)),
    "changed in place": lambda: (InPlace(), nn.MSELoss(), torch.randn(5, 3), torch.randn(5, 2)),
}


def case(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Any, Any, Any]:
    torch.manual_seed(0)
    module, loss, inputs, targets = CASES[name]()

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(cast(x) for x in value)
        return value.to(dtype) if value.is_floating_point() else value

    return module.to(dtype), loss, cast(inputs), cast(targets)


@pytest.mark.parametrize("name", CASES)
def test_products_and_gradients_match_dense_autograd(name: str):
    module, loss, inputs, targets = case(name)
    problem = ModuleProblem(module, loss)
    batch = (inputs, targets)
    linearization = problem.linearize(batch)
    value = loss(module(*inputs) if isinstance(inputs, tuple) else module(inputs), targets)
    torch.testing.assert_close(linearization.loss, value.detach())
    assert problem.loss(batch) == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(linearization.gradient(), flat_gradient(module, value))
    expected = dense_gauss_newton(module, loss, inputs, targets)
    torch.testing.assert_close(product_matrix(problem, batch), expected, rtol=1e-9, atol=1e-12)
    forward = ModuleProblem(module, loss, forward_mode=True)
    torch.testing.assert_close(product_matrix(forward, batch), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_single_precision_works_both_ways_and_leaves_everything_alone(name: str):
    """The fast kernels of float32 (oneDNN's LSTM, fused attention) have no forward mode or no second
    derivative.
    """
    module, loss, inputs, targets = case(name, torch.float32)
    flags = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    before = copy.deepcopy(module.state_dict())
    modes = [part.training for part in module.modules()]
    random = torch.get_rng_state()
    products: list[Tensor] = []
    for forward in (False, True):
        problem = ModuleProblem(module, loss, forward_mode=forward)
        v = torch.randn(problem.size, generator=torch.Generator().manual_seed(1))
        linearization = problem.linearize((inputs, targets))
        products.append(linearization.gauss_newton(v))
        assert problem.frame.forward_mode is forward  # no silent fall-back
        list(linearization.traffic(torch.Generator().manual_seed(0)))
    torch.testing.assert_close(*products, rtol=1e-3, atol=1e-5)
    assert flags == (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    assert modes == [part.training for part in module.modules()]
    assert torch.equal(random, torch.get_rng_state())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(p.grad is None for p in module.parameters())


def test_protocols():
    module, loss, inputs, targets = case("feed-forward")
    problem = problem_of(module, loss)
    assert isinstance(problem, Problem) and isinstance(problem, ModuleProblem)
    assert isinstance(problem.linearize((inputs, targets)), Linearization)
    assert problem.scored((inputs, targets)) == problem.characters((inputs, targets)) == 6


def test_read_and_write():
    module, loss, *_ = case("tied")
    problem = ModuleProblem(module, loss)
    assert problem.size == 15 + 9 + 3  # the tied weight once
    flat = torch.randn(problem.size, dtype=torch.float64)
    problem.write(flat)
    assert torch.equal(problem.read(), flat)
    assert module.out.weight is module.embed.weight
    torch.testing.assert_close(module.embed.weight.detach().flatten(), flat[:15])
    with pytest.raises(ValueError, match="the parameters are"):
        problem.write(flat[1:])


def test_loss_elsewhere_moves_nothing_and_keeps_a_linearization_alive():
    module, loss, inputs, targets = case("feed-forward")
    problem, batch = ModuleProblem(module, loss), (inputs, targets)
    linearization, before = problem.linearize(batch), problem.read()
    other = before + 0.1
    elsewhere = problem.loss_at(other, batch)
    assert torch.equal(problem.read(), before)
    linearization.gauss_newton(before)
    problem.write(other)
    assert elsewhere == problem.loss(batch)
    with pytest.raises(RuntimeError, match="linearize again"):
        linearization.gauss_newton(before)
    with pytest.raises(RuntimeError, match="linearize again"):
        linearization.gradient()


def test_a_replaced_parameter_is_noticed_too():
    module, loss, inputs, targets = case("feed-forward")
    linearization = ModuleProblem(module, loss).linearize((inputs, targets))
    module[0].weight.data = module[0].weight.data.clone()
    with pytest.raises(RuntimeError, match="linearize again"):
        linearization.gradient()


def test_frozen_parameters_are_left_out():
    module, loss, inputs, targets = case("feed-forward")
    module[0].weight.requires_grad_(False)
    problem = ModuleProblem(module, loss)
    assert problem.size == 4 + 12 + 3
    expected = dense_gauss_newton(module, loss, inputs, targets)
    torch.testing.assert_close(product_matrix(problem, (inputs, targets)), expected)
    frozen = module[0].weight.detach().clone()
    problem.write(torch.zeros(problem.size, dtype=torch.float64))
    assert torch.equal(module[0].weight, frozen)


def test_unused_parameters_have_no_gradient_and_no_curvature():
    module, loss, inputs, targets = case("feed-forward")
    module.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    problem = ModuleProblem(module, loss)
    start = next(iter(dict(module.named_parameters())))
    assert start == "unused"  # a module's own parameters come before its children's
    linearization = problem.linearize((inputs, targets))
    assert not linearization.gradient()[:2].any() and linearization.gradient()[2:].any()
    v = torch.ones(problem.size, dtype=torch.float64)
    assert not linearization.gauss_newton(v)[:2].any()
    torch.testing.assert_close(
        linearization.gauss_newton(v, tikhonov=0.5)[:2], torch.full((2,), 0.5, dtype=torch.float64)
    )


@pytest.mark.parametrize("memory", ["stored", "recomputed"])
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(ignore_index=1),
        nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64), label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
    ],
)
def test_chunks_are_weighted_by_what_they_score(loss: nn.Module, memory: str):
    module, _, inputs, targets = case("feed-forward")
    targets = torch.tensor([0, 1, 2, 1, 0, 2])
    problem = ModuleProblem(module, loss, memory=memory)
    whole = (inputs, targets)
    cut = [(inputs[:1], targets[:1]), (inputs[1:2], targets[1:2]), (inputs[2:], targets[2:])]
    assert problem.loss(cut) == pytest.approx(problem.loss(whole), rel=1e-12)
    one, many = problem.linearize(whole), problem.linearize(cut)
    v = torch.randn(problem.size, dtype=torch.float64)
    assert one.count == many.count == problem.scored(cut)
    torch.testing.assert_close(many.loss, one.loss)
    torch.testing.assert_close(many.gradient(), one.gradient())
    torch.testing.assert_close(many.gauss_newton(v), one.gauss_newton(v))
    torch.testing.assert_close(many.gauss_newton(v), one.gauss_newton(v))  # from the kept graphs


def test_a_sum_is_divided_by_what_is_scored():
    module, _, inputs, targets = case("feed-forward")
    mean = ModuleProblem(module, nn.CrossEntropyLoss()).linearize((inputs, targets))
    total = ModuleProblem(module, nn.CrossEntropyLoss(reduction="sum")).linearize((inputs, targets))
    torch.testing.assert_close(total.loss, mean.loss)
    torch.testing.assert_close(total.gradient(), mean.gradient())


def test_structural_damping_holds_named_states_still():
    module, loss, inputs, targets = case("lstm")
    problem = ModuleProblem(module, loss, states=["layer", "out"])
    batch = (inputs, targets)
    plain = product_matrix(problem, batch)
    n = targets.numel()
    hidden = jacobian(module, lambda m: m.layer(inputs)[0])
    out = jacobian(module, lambda m: m(inputs))
    expected = plain + 0.3 / n * (hidden.T @ hidden + out.T @ out)
    expected += 0.2 * torch.eye(problem.size, dtype=torch.float64)
    torch.testing.assert_close(product_matrix(problem, batch, structural=0.3, tikhonov=0.2), expected)
    forward = ModuleProblem(module, loss, states=["layer", "out"], forward_mode=True)
    torch.testing.assert_close(product_matrix(forward, batch, structural=0.3, tikhonov=0.2), expected)


def test_structural_damping_without_states_or_with_unknown_ones_is_refused():
    module, loss, inputs, targets = case("feed-forward")
    linearization = ModuleProblem(module, loss).linearize((inputs, targets))
    with pytest.raises(ValueError, match="states="):
        linearization.gauss_newton(torch.zeros(27, dtype=torch.float64), structural=0.1)
    with pytest.raises(ValueError, match=r"'hidden'.*'0', '1', '2'"):
        ModuleProblem(module, loss, states=["hidden"])


def test_states_survive_what_follows_in_place():
    module = nn.Sequential(nn.Linear(3, 4), nn.ELU(inplace=True), nn.Linear(4, 2)).double()
    inputs, targets = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    problem = ModuleProblem(module, nn.MSELoss(), states=["0"])
    plain = product_matrix(problem, (inputs, targets))
    hidden = jacobian(module, lambda m: m[0](inputs))
    expected = plain + 0.1 / 10 * hidden.T @ hidden
    torch.testing.assert_close(product_matrix(problem, (inputs, targets), structural=0.1), expected)


def test_tangents_and_cotangents_are_transposes():
    module, loss, inputs, targets = case("lstm")
    problem = ModuleProblem(module, loss, states=["layer"])
    for batch in ((inputs, targets), [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])]):
        linearization = problem.linearize(batch)
        v = torch.randn(problem.size, dtype=torch.float64)
        tangents = linearization.jvp(v)
        pairs = tangents if isinstance(batch, list) else [tangents]
        cotangents = [(torch.randn_like(z), [torch.randn_like(s) for s in states]) for z, states in pairs]
        left = sum(
            (z * a).sum() + sum((s * b).sum() for s, b in zip(states, bs, strict=True))
            for (z, states), (a, bs) in zip(pairs, cotangents, strict=True)
        )
        if isinstance(batch, list):
            right = linearization.vjp([a for a, _ in cotangents], [b for _, b in cotangents])
        else:
            right = linearization.vjp(*cotangents[0])
        torch.testing.assert_close(left, torch.dot(right, v))


def test_modules_that_return_more_than_one_tensor():
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4).double()
    inputs, targets = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 2, 4, dtype=torch.float64)

    def loss(outputs: tuple[Tensor, tuple[Tensor, Tensor]], wanted: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[0], wanted) + outputs[1][1].square().mean()

    problem = ModuleProblem(lstm, loss)
    j = jacobian(lstm, lambda m: torch.cat([m(inputs)[0].flatten(), m(inputs)[1][1].flatten()]))
    weights = torch.cat([torch.full((40,), 2 / 40), torch.full((8,), 2 / 8)]).double()
    torch.testing.assert_close(product_matrix(problem, (inputs, targets)), j.T @ (weights[:, None] * j))


def test_layers_without_a_second_derivative_fall_back_to_forward_mode():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.square()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * grad

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * tangent

    class Squared(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Square.apply(super().forward(x))

    module = Squared(3, 2).double()
    inputs, targets = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    problem = ModuleProblem(module, nn.MSELoss())
    j = jacobian(module, lambda m: (inputs @ m.weight.T + m.bias).square())
    torch.testing.assert_close(product_matrix(problem, (inputs, targets)), 2 / 8 * j.T @ j)
    assert problem.frame.forward_mode


def test_layers_that_can_be_differentiated_neither_way_are_named():
    module = nn.EmbeddingBag(4, 2)
    linearization = ModuleProblem(module, nn.MSELoss()).linearize(
        (torch.zeros(3, 2).long(), torch.ones(3, 2))
    )
    with pytest.raises(NotImplementedError, match=r"neither.*embedding_bag"):
        linearization.gauss_newton(torch.ones(8))


def test_subset_and_halves_cut_dimension_zero():
    module, loss = nn.Linear(2, 3).double(), nn.CrossEntropyLoss()
    problem = ModuleProblem(module, loss)
    inputs = torch.arange(24_000, dtype=torch.float64).view(12_000, 2)
    targets = torch.arange(12_000) % 3
    g = torch.Generator().manual_seed(0)
    small = (inputs[:9_999], targets[:9_999])
    assert problem.subset(small, 0.25, g) is small  # below 10,000 scored elements
    cut = problem.subset((inputs, targets), 0.25, g)
    assert problem.scored(cut) == 3_000
    chosen = cut[0][0][:, 0].long() // 2
    assert len(chosen.unique()) == 3_000 and torch.equal(chosen % 3, cut[0][1])
    chunks = [(inputs[:7_000], targets[:7_000]), (inputs[7_000:], targets[7_000:])]
    assert problem.scored(problem.subset(chunks, 0.5, g)) == 6_000
    again = problem.subset((inputs, targets), 0.25, torch.Generator().manual_seed(0))
    assert torch.equal(again[0][0], cut[0][0])
    uneven = (inputs, targets[:11_000])
    assert problem.subset(uneven, 0.25, g) is uneven
    first, second = problem.halves((inputs, targets), g)
    together = torch.cat([first[0][0], second[0][0]])[:, 0].sort().values
    assert torch.equal(together, inputs[:, 0])
    assert problem.halves((inputs[:1], targets[:1]), g) is None
    several = ((inputs, inputs + 1), targets)
    cut = problem.subset(several, 0.25, g)
    assert torch.equal(cut[0][0][0] + 1, cut[0][0][1])


def test_batches_that_people_get_wrong():
    module, loss, inputs, targets = case("feed-forward")
    problem = ModuleProblem(module, loss)
    with pytest.raises(TypeError, match="got a tuple of 3"):
        problem.loss((inputs, inputs, targets))
    with pytest.raises(TypeError, match="inputs, targets"):
        problem.loss(inputs)
    with pytest.raises(ValueError, match="empty"):
        problem.loss([])
    nothing = (inputs, torch.full_like(targets, -100))
    with pytest.raises(ValueError, match="ignored"):
        problem.loss(nothing)
    with pytest.raises(ValueError, match="ignored"):
        problem.linearize(nothing)
    some = [nothing, (inputs, targets)]
    assert problem.loss(some) == problem.loss((inputs, targets))
    torch.testing.assert_close(
        problem.linearize(some).gradient(), problem.linearize((inputs, targets)).gradient()
    )
