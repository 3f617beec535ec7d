"""The module's face: growing, stale linearisations, states, precisions, and what is said to wrong
arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

import rnnewton as rn
from recurrent.support import LAMBDA, MU, SYMBOLS, Case, far, instance
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.model import RecurrentModel


def ids(*shape: int) -> Tensor:
    return torch.randint(0, SYMBOLS, shape)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("direct_input", [True, False])
@pytest.mark.parametrize("direct_output", [True, False])
def test_a_new_layer_leaves_the_loss_as_it_was(cell: str, direct_input: bool, direct_output: bool) -> None:
    options = {"bias": True, "output_bias": True}
    for hidden in ((3,), (3, 2)):
        x = instance(Case(cell, hidden, "softmax", direct_input, direct_output, options))
        model = x.model
        old = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        loss, (z, _) = model.mean_loss(x.inputs, x.targets), model(x.inputs)
        model.add_layer(4)
        assert model.hidden == (*hidden, 4)
        assert torch.equal(model.mean_loss(x.inputs, x.targets), loss)
        assert torch.equal(model(x.inputs)[0], z)
        new = dict(model.named_parameters())
        assert list(new) == [named.name for named in model.layout.names]
        assert all(torch.equal(new[name], value) for name, value in old.items())
        top = f"layers.{len(hidden)}."
        gradient = model.linearize(x.inputs, x.targets).gradient()
        assert gradient.shape == (model.layout.size,)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x.inputs)[0].flatten(0, 1), x.targets.flatten()).backward()
        assert new[top + "W_oh"].grad.abs().max() > 0  # the new layer can begin to learn
        assert all(
            new[name].abs().max() > 0 for name in new if name.startswith(top + "W") and "oh" not in name
        )


def test_growing_keeps_dtype_frozen_weights_and_what_was_drawn() -> None:
    model = RecurrentModel("lstm", (3,), 5, 5, seed=4).double()
    model.get_parameter("layers.0.W_hi").requires_grad_(False)
    model.add_layer(2)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not model.get_parameter("layers.0.W_hi").requires_grad
    whole = RecurrentModel("lstm", (3, 2), 5, 5, seed=4).double()
    assert far(model.get_parameter("layers.1.W_hh"), whole.get_parameter("layers.1.W_hh")) < 1e-7


def in_place(model: RecurrentModel) -> None:
    with torch.no_grad():
        model.get_parameter("layers.0.W_hh").mul_(1.01)


def by_data(model: RecurrentModel) -> None:
    model.get_parameter("layers.0.W_hh").data.add_(0.01)


def by_data_copy(model: RecurrentModel) -> None:
    weight = model.get_parameter("layers.0.W_hh").data
    weight.copy_(weight * 2)


def by_new_data(model: RecurrentModel) -> None:
    parameter = model.get_parameter("layers.0.W_oh")
    parameter.data = parameter.data + 1


def by_vector(model: RecurrentModel) -> None:
    vector_to_parameters(torch.ones(model.layout.size, dtype=torch.float64), model.parameters())


def by_optimizer(model: RecurrentModel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(ids(3, 2))[0].square().sum().backward()
    optimizer.step()


def by_state_dict(model: RecurrentModel) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def by_new_dtype(model: RecurrentModel) -> None:
    model.float()


def by_growing(model: RecurrentModel) -> None:
    model.add_layer(2)


@pytest.mark.parametrize(
    "change",
    [
        in_place,
        by_data,
        by_data_copy,
        by_new_data,
        by_vector,
        by_optimizer,
        by_state_dict,
        by_new_dtype,
        by_growing,
    ],
)
def test_a_linearisation_of_other_weights_is_refused(change: Callable[[RecurrentModel], None]) -> None:
    model = RecurrentModel("rnn", 3, SYMBOLS, SYMBOLS).double()
    lin = model.linearize(ids(4, 2), ids(4, 2))
    v = torch.ones(model.layout.size, dtype=torch.float64)
    z, states = lin.jvp(v)
    change(model)
    calls: list[Callable[[], Any]] = [
        lin.gradient,
        lambda: lin.gauss_newton(v),
        lambda: lin.jvp(v),
        lambda: lin.vjp(z, states),
        lambda: lin.hessian(v),
        lambda: list(lin.traffic()),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="weights changed after this linearisation"):
            call()


def test_weights_written_and_restored_are_the_same_weights() -> None:
    """A line search writes trial weights and puts the old ones back: the linearisation stays good."""
    model = RecurrentModel("rnn", 3, SYMBOLS, SYMBOLS)
    lin = model.linearize(ids(4, 2), ids(4, 2))
    gradient, kept = lin.gradient(), {name: p.detach().clone() for name, p in model.named_parameters()}
    by_vector(model.double())
    model.float().load_state_dict(kept)
    assert torch.equal(lin.gradient(), gradient)


def test_results_are_handed_out_for_good() -> None:
    """Rooms inside are used again; what was returned must not change with them."""
    x = instance(Case("mlstm", (3, 2), steps=6))
    for memory in ("stored", "recomputed"):
        lin = x.linearize(memory=memory)
        v, w = torch.randn_like(x.flat), torch.randn_like(x.flat)
        first = (lin.jvp(v), lin.gradient(), lin.gauss_newton(v, MU, LAMBDA), next(lin.traffic()))
        copies = [part.clone() for part in leaves(first)]
        lin.jvp(w), lin.gauss_newton(w, MU, LAMBDA), lin.gradient(), list(lin.traffic())
        assert all(torch.equal(a, b) for a, b in zip(copies, leaves(first), strict=True))


def leaves(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, tuple | list):
        return [part for item in x for part in leaves(item)]
    return [x.inputs, x.deltas] if hasattr(x, "deltas") else []


@pytest.mark.parametrize("cell", CELLS)
def test_state_carries_over_a_border(cell: str) -> None:
    x = instance(Case(cell, (3, 2), steps=8))
    whole, last = x.model(x.inputs)
    head, middle = x.model(x.inputs[:3])
    tail, end = x.model(x.inputs[3:], middle)
    assert far(torch.cat((head, tail)), whole) < 1e-14
    assert all(far(a, b) < 1e-14 for s, t in zip(end, last) for a, b in zip(s, t))
    both = x.model.linearize([(x.inputs[:3], x.targets[:3]), (x.inputs[3:], x.targets[3:], "every", middle)])
    assert abs(both.loss - x.linearize().loss) < 1e-14
    for a, b in zip(both.last_states[1], last):
        assert all(far(one, other) < 1e-14 for one, other in zip(a, b))


def test_mean_loss_and_linearize_agree_on_every_kind_of_batch() -> None:
    model = RecurrentModel("mlstm", (3, 2), SYMBOLS, SYMBOLS, init=rn.Normal(0.7)).double()
    x, y, mask = ids(6, 3), ids(6, 3), torch.rand(6, 3) < 0.5
    state = [type(s)(*(torch.randn_like(part) for part in s)) for s in model.zero_state(3)]
    batches: list[tuple[Any, ...]] = [
        (x, y),
        (x, y, None, "last"),
        (x, y, state, mask),
        ([x, x[:2]], [y, y[:2]]),
        ([x, x], [y, y], [state, None], [mask, "last"]),
        ([(x, y), (x, y, "last"), (x, y, mask, state)],),
    ]
    for batch in batches:
        lin = model.linearize(*batch)
        assert abs(lin.loss - model.mean_loss(*batch)) < 1e-13
        assert lin.count == model.scored(*batch)
        assert lin.loss.dtype == torch.float64
    only_last = torch.zeros(6, 3, dtype=torch.bool)
    only_last[-1] = True
    v = torch.randn(model.layout.size, dtype=torch.float64)
    a, b = model.linearize(x, y, at="last"), model.linearize(x, y, at=only_last)
    assert far(a.gauss_newton(v, MU), b.gauss_newton(v, MU)) < 1e-13


@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_precisions(kernels: str) -> None:
    """fp64 is exact beside fp32; bf16 keeps some three digits; tf32 is fp32 where there is no such
    hardware."""
    model = RecurrentModel("mlstm", (16,), 9, 9, init=rn.Normal(0.3))
    x, y = torch.randint(0, 9, (2, 20, 8))
    v = torch.randn(model.layout.size)
    exact = model.linearize(x, y, precision="fp64")
    product, gradient = exact.gauss_newton(v, MU, LAMBDA), exact.gradient()
    assert product.dtype == gradient.dtype == torch.float32

    def error(precision: str | None) -> float:
        lin = model.linearize(x, y, precision=precision, kernels=kernels)
        assert lin.gauss_newton(v).dtype == torch.float32 and lin.loss.dtype == torch.float64
        assert abs(lin.loss - exact.loss) < (1e-2 if precision == "bf16" else 1e-5)
        parts = [(lin.gauss_newton(v, MU, LAMBDA), product), (lin.gradient(), gradient)]
        return max(float((a - b).norm() / b.norm()) for a, b in parts)

    assert error(None) < 1e-5 and error("fp32") < 1e-5 and error("tf32") < 1e-3
    assert 1e-5 < error("bf16") < 3e-2
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_double_model_may_be_multiplied_in_single() -> None:
    x = instance(Case("lstm"))
    v = torch.randn_like(x.flat)
    single = x.linearize(precision="fp32").gauss_newton(v)
    assert single.dtype == torch.float64
    assert 1e-12 < far(single, x.linearize().gauss_newton(v)) < 1e-5


def test_forget_biases_are_set_and_seen() -> None:
    model = RecurrentModel("lstm", (3, 2), 5, 5, bias=True, forget_bias=1.5)
    for layer in (0, 1):
        assert (model.get_parameter(f"layers.{layer}.B_forget") == 1.5).all()
        assert (model.get_parameter(f"layers.{layer}.B_input") == 0).all()
    for arguments in ({"cell": "lstm"}, {"cell": "rnn"}, {"cell": "lstm-original", "bias": True}):
        with pytest.raises(ValueError, match="forget gate"):
            RecurrentModel(hidden=2, inputs=3, outputs=3, forget_bias=1.0, **arguments)


def test_inputs_and_outputs_of_different_kinds() -> None:
    """Real signals in, symbols out; and the other way round."""
    for inputs, outputs, loss in ((rn.Real(3), 4, "softmax"), (4, rn.Real(2), "squared")):
        model = RecurrentModel("mlstm", (3, 2), inputs, outputs, loss).double()
        x = torch.randn(5, 2, 3).double() if loss == "softmax" else torch.randint(0, 4, (5, 2))
        y = torch.randint(0, 4, (5, 2)) if loss == "softmax" else torch.randn(5, 2, 2).double()
        lin = model.linearize(x, y)
        z, _ = model(x)
        want = (
            torch.nn.functional.cross_entropy(z.flatten(0, 1), y.flatten())
            if loss == "softmax"
            else torch.nn.functional.mse_loss(z, y)
        )
        assert abs(lin.loss - want) < 1e-12
        gradient = torch.autograd.grad(want, list(model.parameters()))
        assert far(lin.gradient(), torch.cat([part.reshape(-1) for part in gradient])) < 1e-12


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cell": "gru"}, "the cells are"),
        ({"hidden": ()}, "no layer"),
        ({"hidden": (3, 0)}, "a hidden width"),
        ({"hidden": 2.5}, "hidden"),
        ({"inputs": 0}, "inputs"),
        ({"outputs": rn.Real(3)}, "squared"),
        ({"loss": "squared"}, "Real"),
        ({"loss": "hinge"}, "hinge"),
        ({"cell": "rnn", "squash_input": True}, "gated"),
    ],
)
def test_wrong_architectures_are_explained(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        RecurrentModel(**{"hidden": (3,), "inputs": 4, "outputs": 4, **arguments})


def test_flat_order_is_the_modules_order() -> None:
    model = RecurrentModel("mlstm", (3, 2), 5, 4, bias=True, output_bias=True)
    names = [name for name, _ in model.named_parameters()]
    assert names[:3] == ["layers.0.W_mi", "layers.0.W_mh", "layers.0.W_hi"]
    assert names[-1] == "outputs.B_o"
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert torch.equal(flat, model._flat())
    assert [named.name for named in model.layout.names] == names
