"""Plain autograd, torch.optim and torch.func through the module, against the reference loop."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from recurrent.support import Case, Instance, far, instance
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.initialization import Normal
from rnnewton.recurrent.model import RecurrentModel

CASES = [
    case
    for cell in CELLS
    for case in (Case(cell, (3, 2), steps=4), Case(cell, (2, 3), "squared", direct_input=False, steps=4))
]


def weights(model: RecurrentModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values.values()])


class Slow(torch.nn.Module):
    """The reference loop behind the same parameters."""

    def __init__(self, model: RecurrentModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any) -> Any:
        z, states = self.model.reference(*arguments)
        return z, states[-1]


def both(x: Instance) -> tuple[Any, Any]:
    """The network as a function of its weights: by the passes, and by the reference loop."""

    def fast(values: dict[str, Tensor], *arguments: Any) -> Any:
        return functional_call(x.model, values, arguments)

    def slow(values: dict[str, Tensor], *arguments: Any) -> Any:
        named = {f"model.{name}": value for name, value in values.items()}
        return functional_call(Slow(x.model), named, arguments)

    return fast, slow


@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward_reaches_weights_inputs_and_states(case: Case) -> None:
    x = instance(case)
    state = [type(s)(*(torch.randn_like(p).requires_grad_() for p in s)) for s in x.model.zero_state(2)]
    leaves = [*x.model.parameters(), *(part for s in state for part in s)]
    inputs = x.inputs
    if inputs.is_floating_point():
        inputs = inputs.clone().requires_grad_()
        leaves.append(inputs)
    gradients = []
    for network in (x.model, Slow(x.model)):
        z, last = network(inputs, state)
        total = z.sin().sum() + sum((part * part).sum() for s in last for part in s)
        gradients.append(torch.autograd.grad(total, leaves))
    assert all(far(a, b) < 1e-12 for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_mode_reverse_mode_and_both(case: Case) -> None:
    x = instance(case)
    point = weights(x.model)
    direction = {name: torch.randn_like(value) for name, value in point.items()}
    fast, slow = both(x)
    results = []
    for network in (fast, slow):

        def outputs(values: dict[str, Tensor], network: Any = network) -> Any:
            z, last = network(values, x.inputs)
            return z, [tuple(s) for s in last]

        def total(values: dict[str, Tensor], outputs: Any = outputs) -> Tensor:
            z, last = outputs(values)
            return z.sin().sum() + sum((part**2).sum() for s in last for part in s)

        (z, _), (r_z, r_last) = jvp(outputs, (point,), (direction,))
        (_, pull) = vjp(outputs, point)
        pulled = pull((z, [tuple(part for part in s) for s in r_last]))[0]
        gradient, curved = jvp(grad(total), (point,), (direction,))
        results.append([r_z, flat(pulled), flat(gradient), flat(curved), *(p for s in r_last for p in s)])
    assert all(far(a, b) < 1e-11 for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("cell", CELLS)
def test_second_derivatives_by_autograd(cell: str) -> None:
    x = instance(Case(cell, (2, 2), "squared", steps=3))
    inputs = x.inputs.clone().requires_grad_()
    leaves = [inputs, *x.model.parameters()]
    seconds = []
    for network in (x.model, Slow(x.model)):
        firsts = torch.autograd.grad((network(inputs)[0] ** 3).sum(), leaves, create_graph=True)
        seconds.append(torch.autograd.grad(sum((g * g).sum() for g in firsts), leaves))
    assert all(far(a, b) < 1e-11 for a, b in zip(*seconds, strict=True))


def test_whole_jacobians_and_hessians() -> None:
    x = instance(Case("mlstm", (2,), steps=3))
    fast, slow = both(x)
    point = weights(x.model)

    def of(network: Any) -> Any:
        return lambda values: network(values, x.inputs)[0]

    for jacobian in (jacrev, jacfwd):
        one, other = jacobian(of(fast))(point), jacobian(of(slow))(point)
        assert all(far(one[name], other[name]) < 1e-12 for name in point)
    name = "layers.0.W_mh"

    def loss(network: Any) -> Any:
        return lambda weight: network(point | {name: weight}, x.inputs)[0].square().sum()

    assert far(hessian(loss(fast))(point[name]), hessian(loss(slow))(point[name])) < 1e-11


def test_vmap_over_inputs_states_and_weights() -> None:
    x = instance(Case("lstm", (3, 2), steps=4))
    fast, _ = both(x)
    point = weights(x.model)
    many = torch.stack([x.inputs, x.inputs.flip(0)])
    z = vmap(lambda inputs: x.model(inputs)[0])(many)
    assert far(z, torch.stack([x.model(inputs)[0] for inputs in many])) < 1e-14
    ensemble = {name: torch.stack([value, 2 * value]) for name, value in point.items()}
    z = vmap(lambda values: fast(values, x.inputs)[0])(ensemble)
    assert far(z[0], x.model(x.inputs)[0]) < 1e-14 and far(z[1], z[0]) > 1e-3
    per_example = vmap(
        lambda inputs: grad(lambda values: fast(values, inputs.unsqueeze(1))[0].sum())(point), in_dims=1
    )(x.inputs)
    together = grad(lambda values: fast(values, x.inputs)[0].sum())(point)
    assert all(far(per_example[name].sum(0), together[name]) < 1e-12 for name in point)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_torch_optimisers_train_it(cell: str, kind: Any) -> None:
    torch.manual_seed(1)
    model = RecurrentModel(cell, (8,), 4, 4, init=Normal(0.5))
    inputs = torch.arange(24).view(12, 2) % 4
    targets = (inputs + 1) % 4
    optimizer = kind(model.parameters(), lr=0.5 if kind is not torch.optim.Adam else 0.05)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())
        loss.backward()
        return loss

    first = float(closure().detach())
    for _ in range(12):
        optimizer.step(closure)
    assert float(model.mean_loss(inputs, targets)) < 0.9 * first


def test_frozen_weights_get_no_gradient() -> None:
    x = instance(Case("mlstm", (3,)))
    frozen = x.model.get_parameter("layers.0.W_mh").requires_grad_(False)
    x.model(x.inputs)[0].sum().backward()
    assert frozen.grad is None
    assert all(p.grad is not None for p in x.model.parameters() if p is not frozen)


def test_no_gradient_no_tape() -> None:
    x = instance(Case("mlstm", (3,)))
    with torch.no_grad():
        z, last = x.model(x.inputs)
    assert not z.requires_grad and not last[0].out.requires_grad
    with torch.inference_mode():
        assert far(x.model(x.inputs)[0], z) == 0


def test_the_module_is_an_ordinary_one() -> None:
    model = RecurrentModel("lstm", (3,), 5, 5)
    again = RecurrentModel("lstm", (3,), 5, 5, seed=1)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again._flat(), model._flat())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert model.double().get_parameter("layers.0.W_hi").dtype == torch.float64
    assert torch.equal(copy.deepcopy(model)._flat(), model._flat())
