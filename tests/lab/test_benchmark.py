"""The benchmark compares like with like: every way to a gradient or a product gives the same one."""

import torch

from rnnewton.lab import benchmark
from rnnewton.lab.benchmark import BenchSettings, run_benchmark
from rnnewton.recurrent.model import RecurrentModel


def test_all_ways_compute_the_same() -> None:
    model = RecurrentModel("mlstm", (5,), 7, 7, seed=1).double()
    ids = torch.randint(7, (9, 4))
    inputs, targets = ids[:-1], ids[1:]
    point = model.linearize(inputs, targets)
    v = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    assert torch.allclose(benchmark._autograd(model, inputs, targets), point.gradient(), atol=1e-12)
    assert torch.allclose(
        benchmark._double_backward(model, inputs, targets, v), point.gauss_newton(v), atol=1e-12
    )
    assert torch.allclose(benchmark._jvp_vjp(model, inputs, targets, v), point.gauss_newton(v), atol=1e-12)


def test_every_way_is_timed() -> None:
    timings = run_benchmark(BenchSettings(hidden=6, symbols=5, length=4, sequences=3, rounds=2))
    assert {each.what for each in timings} == {"matrix product", "forward", "gradient", "product", "step"}
    assert all(each.seconds > 0 for each in timings)
    assert timings[0].of_product == 1.0
