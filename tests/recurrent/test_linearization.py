"""The linearisation's other answers: the Hessian, and what flows through the weights."""

import pytest
import torch
from torch import Tensor

from recurrent.support import SYMBOLS, Case, Instance, Reference, far, instance
from rnnewton.newton.problem import WeightTraffic
from rnnewton.recurrent.cells import CELLS

WAYS = [{}, {"memory": "recomputed"}, {"memory": 3_000, "spacing": "uneven"}]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_the_hessian_is_exact(cell: str, loss: str) -> None:
    x = instance(Case(cell, (2, 2), loss, steps=4, at="mask", carried=True))
    reference, lin = Reference(x), x.linearize()
    v, step = torch.randn_like(x.flat), 1e-5
    dense = torch.func.hessian(reference.loss)(x.flat)
    assert far(lin.hessian(v), dense @ v) < 1e-10
    ahead, behind = (torch.func.grad(reference.loss)(x.flat + s * step * v) for s in (1, -1))
    assert far(lin.hessian(v), (ahead - behind) / (2 * step)) < 1e-6


def test_where_the_network_is_linear_the_two_matrices_are_one() -> None:
    """The last layer alone is linear in its weights: there the Gauss-Newton matrix is the Hessian."""
    x = instance(Case("lstm", (3,), "squared"))
    readout = x.model.layout.layers[0].readout
    assert readout is not None
    v = torch.zeros_like(x.flat)
    v[readout.start : readout.start + readout.size] = torch.randn(readout.size, dtype=torch.float64)
    lin = x.linearize()
    assert far(readout.of(lin.gauss_newton(v)), readout.of(lin.hessian(v))) < 1e-12


def summed(traffic: list[list[WeightTraffic]], size: int) -> Tensor:
    """The gradient that this traffic makes, as a sum."""
    total = torch.zeros(size, dtype=torch.float64)
    for chunk in traffic:
        for flow in chunk:
            inputs = flow.inputs
            if not inputs.is_floating_point():
                inputs = torch.nn.functional.one_hot(inputs, flow.columns).double()
            gradient = flow.deltas.flatten(0, 1).T @ inputs.flatten(0, 1)
            assert gradient.shape == (flow.rows, flow.columns)
            total[flow.start : flow.start + flow.rows * flow.columns] += gradient.reshape(-1)
    return total


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("at", ["every", "last", "mask"])
def test_traffic_at_the_true_targets_makes_the_gradient(cell: str, at: str) -> None:
    options = {"bias": True, "output_bias": True}
    for loss in ("softmax", "squared"):
        x = instance(Case(cell, (3, 2), loss, options=options, steps=6, sequences=3, at=at, carried=True))
        for way in WAYS:
            lin = x.linearize(**way)
            traffic = list(lin.traffic())
            assert far(summed(traffic, x.flat.numel()) / lin.count, lin.gradient()) < 1e-12
            for flow in traffic[0]:
                assert flow.deltas.shape[2] == flow.rows
                assert flow.inputs.shape[:2] == flow.deltas.shape[:2]
            names = {flow.name for flow in traffic[0]}
            assert names <= {named.name for named in x.model.layout.names}
            covered = sum(flow.rows * flow.columns for flow in traffic[0])
            assert covered == x.model.layout.size  # every weight, once


def test_sampled_traffic_has_the_curvature_of_the_loss() -> None:
    """Targets drawn from the model: the readout bias's deltas have covariance p (1 − p) and mean zero."""
    for loss in ("softmax", "squared"):
        x = instance(Case("rnn", (3,), loss, options={"output_bias": True}, steps=2, sequences=1))
        lin, random = x.linearize(), torch.Generator().manual_seed(3)
        draws = torch.stack([bias_delta(next(lin.traffic(random))) for _ in range(4000)])
        z, _ = x.model(x.inputs)
        z = z.detach()[-1, 0]
        curved = torch.eye(len(z), dtype=torch.float64) * 2 / len(z)
        if loss == "softmax":
            p = z.softmax(-1)
            curved = torch.diag(p) - torch.outer(p, p)
        assert draws.mean(0).abs().max() < 0.05
        assert (draws.T @ draws / len(draws) - curved).abs().max() < 0.06


def bias_delta(chunk: list[WeightTraffic]) -> Tensor:
    return next(flow.deltas[-1, 0] for flow in chunk if flow.name == "outputs.B_o")


def test_sampled_traffic_repeats_with_its_generator() -> None:
    x = instance(Case("mlstm", (3, 2), at="mask"))
    lin = x.linearize()
    one, two, other = (list(lin.traffic(torch.Generator().manual_seed(seed))) for seed in (5, 5, 6))
    size = x.flat.numel()
    assert torch.equal(summed(one, size), summed(two, size))
    assert far(summed(one, size), summed(other, size)) > 1e-6
    for flow in one[0]:
        if "W_oh" in flow.name:
            assert not flow.deltas[~x.at].any()  # nothing flows from positions that are not scored


def test_parts_of_a_cotangent_may_be_missing() -> None:
    x: Instance = instance(Case("lstm", (3, 2)))
    lin = x.linearize()
    z, states = lin.jvp(torch.randn_like(x.flat))
    zeros = [type(s)(*(torch.zeros_like(part) for part in s)) for s in states]
    assert far(lin.vjp(z), lin.vjp(z, zeros)) < 1e-14
    assert far(lin.vjp(states=states), lin.vjp(torch.zeros_like(z), states)) < 1e-14
    bare = [type(s)(s.out, None) for s in states]
    full = [type(s)(s.out, torch.zeros_like(s.cell)) for s in states]
    assert far(lin.vjp(None, bare), lin.vjp(None, full)) < 1e-14
    assert not lin.vjp().any()


def test_no_symbol_is_ever_a_product() -> None:
    """One-hot inputs are looked up: a huge alphabet of inputs costs no arithmetic."""
    from torch.utils._python_dispatch import TorchDispatchMode

    import rnnewton as rn

    class NoWideProducts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.__name__.split(".")[0] in ("mm", "addmm", "addmm_", "bmm", "matmul"):
                assert all(50_000 not in x.shape for x in args if isinstance(x, Tensor))
            return function(*args, **(kwargs or {}))

    model = rn.RecurrentModel("mlstm", (3, 2), 50_000, SYMBOLS)
    inputs, targets = torch.randint(0, 50_000, (4, 2)), torch.randint(0, SYMBOLS, (4, 2))
    with NoWideProducts():
        lin = model.linearize(inputs, targets, kernels="eager")
        lin.gradient()
        lin.gauss_newton(torch.randn(model.layout.size), 0.1)
        model(inputs)[0].sum().backward()


def test_cotangents_of_another_shape_are_refused() -> None:
    """They would be broadcast, cut or left out without a word."""
    x = instance(Case("lstm", (3, 2), "softmax", steps=4, sequences=3))
    lin = x.linearize()
    outputs, states = lin.jvp(torch.randn_like(x.flat))
    cut = [state._replace(out=state.out[..., :1]) for state in states]
    wrong = [
        (outputs[:-1], None, "outputs has shape"),
        (torch.cat([outputs, outputs], 1), None, "outputs has shape"),
        (None, states[:1], "of 1 layers"),
        (None, cut, "layer 0's out has shape"),
    ]
    for given, taps, sentence in wrong:
        with pytest.raises(ValueError, match=sentence):
            lin.vjp(given, taps)
    with pytest.raises(TypeError, match="tuple was given"):
        lin.vjp(None, [tuple(state) for state in states])
    only = [None, states[1]._replace(cell=None)]
    zeros = [states[0]._replace(out=0 * states[0].out, cell=0 * states[0].cell)]
    assert far(lin.vjp(None, only), lin.vjp(0 * outputs, [*zeros, only[1]])) < 1e-12
