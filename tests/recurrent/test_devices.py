"""One code for every torch device; where no card is at hand, the meta device shows a hard-wired one."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recurrent.support import LAMBDA, MU, Case, dampings, discrepancy, expected, far
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.model import RecurrentModel

HOST_READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [(3,), (3, 2, 4)])
def test_a_present_device_agrees_with_the_host(cell: str, hidden: tuple[int, ...], device: str) -> None:
    """The suite's own check with everything on the device; float32 where the device has no float64."""
    e = expected(Case(cell, hidden, carried=True))
    if device == "mps":
        pytest.skip("mps has no float64: tests/recurrent/test_devices.py::test_float32_on_a_present_device")
    moved = expected(Case(cell, hidden, carried=True, device=device))
    apart = discrepancy(moved, kernels="eager")
    assert max(apart.values()) < 1e-10, apart
    assert far(moved.gradient.cpu(), e.gradient) < 1e-10
    assert moved.x.linearize().gradient().device.type == device


@pytest.mark.parametrize("cell", CELLS)
def test_float32_on_a_present_device(cell: str, device: str) -> None:
    model = RecurrentModel(cell, (8, 6), 5, 5)
    inputs, targets = torch.randint(0, 5, (2, 9, 4))
    v = torch.randn(model.layout.size)
    host = model.linearize(inputs, targets, precision="fp64").gauss_newton(v, MU, LAMBDA)
    lin = model.to(device).linearize(inputs.to(device), targets.to(device), kernels="eager")
    product = lin.gauss_newton(v.to(device), MU, LAMBDA)
    assert product.device.type == device
    assert far(product.cpu(), host) < 1e-4
    z, _ = model(inputs.to(device))
    z.sum().backward()
    assert all(parameter.grad.device.type == device for parameter in model.parameters())


class NoHostReads(TorchDispatchMode):
    """Refuses whatever would wait for the device, and whatever makes a tensor elsewhere."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.split(".")[0]
        assert name not in HOST_READS, f"{name} waits for the device inside a pass"
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            assert not isinstance(x, torch.Tensor) or x.device.type == self.device, f"{name} made {x.device}"
        return result


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("memory", ["stored", "recomputed"])
def test_the_meta_walk(cell: str, memory: Any) -> None:
    """Forward, gradient, jvp, vjp and every product on tensors that have no memory to read."""
    model = RecurrentModel(cell, (3, 2), 6, 6, bias=True, output_bias=True).to("meta")
    inputs = torch.zeros(4, 3, dtype=torch.int64, device="meta")
    v = torch.empty(model.layout.size, device="meta")
    with NoHostReads("meta"):
        lin = model.linearize(inputs, inputs, memory=memory)
        assert lin.count == 12
        results = [lin.loss, lin.gradient(), *lin.jvp(v)[0:1], lin.vjp(*lin.jvp(v))]
        gated = CELLS[cell].gated
        for form, tap in (("matching", "output"), ("squared", "output"), *([("squared", "cell")] * gated)):
            results.append(lin.gauss_newton(v, MU, LAMBDA, form, tap))
        results += [model.mean_loss(inputs, inputs, at="last")]
        mask = torch.zeros(4, 3, dtype=torch.bool, device="meta")
        results.append(model.linearize(inputs, inputs, at=mask, memory=memory).gauss_newton(v, MU))
        z, last = model(inputs)
        z.sum().backward()
    results.append(lin.hessian(v))  # torch.func makes its own zeros on the host
    assert z.shape == (4, 3, 6) and all(part.is_meta for state in last for part in state)
    assert all(x.is_meta for x in results)
    assert all(parameter.grad.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_passes_read_nothing_from_the_host(cell: str) -> None:
    """On real tensors too: after the one look at ids and weights, a product waits for nothing."""
    model = RecurrentModel(cell, (3, 2), 6, 6)
    inputs = torch.randint(0, 6, (5, 3))
    v = torch.randn(model.layout.size)
    for memory in ("stored", "recomputed"):
        lin = model.linearize(inputs, inputs, memory=memory, kernels="eager")
        lin._unchanged = lambda: True  # the look at the weights, outside the passes
        with NoHostReads("cpu"):
            lin.gradient()
            lin.gauss_newton(v, MU, LAMBDA)
            lin.jvp(v)


@pytest.mark.parametrize("cell", CELLS)
def test_no_default_device_and_no_default_dtype_is_used(cell: str) -> None:
    """With another default device, a tensor made without a word about its place would be in the wrong one."""
    e = expected(Case(cell, (3, 2), carried=True))
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float16)
    try:
        lin = e.x.linearize(memory="recomputed")
        for form, tap in dampings(e.x):
            product = lin.gauss_newton(e.v, MU, LAMBDA, form, tap)
            assert far(product, e.products[form, tap]) < 1e-10
        assert far(lin.gradient(), e.gradient) < 1e-10
        z, _ = e.x.model(e.x.inputs, e.x.state)
        assert z.device.type == "cpu" and z.dtype == torch.float64
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
