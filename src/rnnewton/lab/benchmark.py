"""Forward, gradient, Gauss-Newton product and optimiser step, beside what a user would take instead.

T: time steps, B: sequences, h: hidden units, V: symbols, p: weights. All ways work on the same ids; those
of our own model on the same weights, each product with a fresh vector. The ways are timed in turn, round by
round, so that a slow minute of the machine is everybody's; the median over rounds is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rnnewton.newton.damping import Tikhonov
from rnnewton.newton.optimizer import HessianFree
from rnnewton.newton.settings import ConjugateGradientSettings, CurvatureSettings, HessianFreeSettings
from rnnewton.recurrent.kernels import unavailable
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.recurrent.reference import reference_forward

SQUARES = {"rnn": 1, "lstm": 4, "lstm-original": 3, "mrnn": 2, "mlstm": 5}  # h x h products of one time step
ITERATIONS = 5  # of conjugate gradient in the step that is timed


@dataclass(frozen=True)
class BenchSettings:
    cell: str = "mlstm"
    hidden: int = 170
    symbols: int = 70
    length: int = 200
    sequences: int = 64
    rounds: int = 5
    slow: bool = True  # also the ways that take many times longer


@dataclass(frozen=True)
class Timing:
    """One way: `passes` is what it counts in useful operations, in forward passes; 0: no such count."""

    what: str
    way: str
    seconds: float
    characters_per_second: float
    gflops: float | None
    of_product: float | None  # of the rate of a plain matrix product, measured in the same rounds


@dataclass(frozen=True)
class _Way:
    what: str
    name: str
    run: Callable[[], Any]
    passes: float
    squares: float  # h x h products a step, of the network that it runs
    width: int


def run_benchmark(settings: BenchSettings) -> list[Timing]:
    ways = [_matrix_product(settings), *_ours(settings), *_peers(settings)]
    for way in ways:
        way.run()
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(settings.rounds):
        for times, way in zip(taken, ways):
            began = time.perf_counter()
            way.run()
            times.append(time.perf_counter() - began)
    medians = [statistics.median(times) for times in taken]
    peak = _operations(ways[0], settings) / medians[0]
    return [_timing(way, seconds, peak, settings) for way, seconds in zip(ways, medians)]


def _timing(way: _Way, seconds: float, peak: float, settings: BenchSettings) -> Timing:
    rate = _operations(way, settings) / seconds
    characters = settings.length * settings.sequences / seconds
    counted = way.passes > 0
    return Timing(
        way.what,
        way.name,
        seconds,
        characters,
        rate / 1e9 if counted else None,
        rate / peak if counted else None,
    )


def _operations(way: _Way, settings: BenchSettings) -> float:
    """Useful operations, as DESIGN.md counts them: 2 T B (squares h² + h V) a pass."""
    per_step = way.squares * way.width**2 + way.width * settings.symbols
    return way.passes * 2 * settings.length * settings.sequences * per_step


def _batch(settings: BenchSettings) -> tuple[Tensor, Tensor]:
    shape = (settings.length + 1, settings.sequences)
    ids = torch.randint(settings.symbols, shape, generator=torch.Generator().manual_seed(0))
    return ids[:-1], ids[1:]


def _matrix_product(settings: BenchSettings) -> _Way:
    """What the machine gives for the network's own largest product, all time steps at once."""
    rows, width = settings.length * settings.sequences, settings.hidden
    left, right = torch.randn(rows, width), torch.randn(width, 4 * width)
    out = torch.empty(rows, 4 * width)
    squares = SQUARES[settings.cell]
    share = 4 * width**2 / (squares * width**2 + width * settings.symbols)
    name = f"torch.mm ({rows} x {width} x {4 * width})"
    return _Way("matrix product", name, lambda: torch.mm(left, right, out=out), share, squares, width)


def _ours(settings: BenchSettings) -> list[_Way]:
    model = RecurrentModel(settings.cell, (settings.hidden,), settings.symbols, settings.symbols)
    inputs, targets = _batch(settings)
    size = sum(p.numel() for p in model.parameters())
    generator = torch.Generator().manual_seed(1)

    def vector() -> Tensor:
        return torch.randn(size, generator=generator)

    def way(what: str, name: str, run: Callable[[], Any], passes: float) -> _Way:
        return _Way(what, name, run, passes, SQUARES[settings.cell], settings.hidden)

    ways: list[_Way] = []
    for kernels in ("native", "eager") if unavailable() is None else ("eager",):
        point = model.linearize(inputs, targets, kernels=kernels)

        def gradient(kernels: str = kernels) -> Tensor:
            return model.linearize(inputs, targets, kernels=kernels).gradient()

        ways.append(way("gradient", f"rnnewton, {kernels}", gradient, 3))
        ways.append(
            way(
                "product",
                f"rnnewton, {kernels}",
                lambda point=point: point.gauss_newton(vector(), tikhonov=0.1),
                4,
            )
        )
    ways.insert(0, way("forward", "rnnewton", lambda: model.mean_loss(inputs, targets), 1))
    ways.append(way("gradient", "autograd, plain loop", lambda: _autograd(model, inputs, targets), 3))
    if settings.slow:
        ways.append(
            way(
                "product",
                "double backward, plain loop",
                lambda: _double_backward(model, inputs, targets, vector()),
                4,
            )
        )
        ways.append(
            way("product", "torch.func jvp + vjp", lambda: _jvp_vjp(model, inputs, targets, vector()), 4)
        )
    ways.append(_step(settings, inputs, targets))
    return ways


def _step(settings: BenchSettings, inputs: Tensor, targets: Tensor) -> _Way:
    """A whole Hessian-free step: its gradient on the batch, its products on a fifth of it."""
    model = RecurrentModel(settings.cell, (settings.hidden,), settings.symbols, settings.symbols)
    optimizer = HessianFree(
        model,
        damping=Tikhonov(0.1),
        settings=HessianFreeSettings(
            cg=ConjugateGradientSettings(iterations=ITERATIONS), curvature=CurvatureSettings(fraction=0.2)
        ),
    )
    name = f"Hessian-free, {ITERATIONS} iterations on 1/5"
    return _Way(
        "step", name, lambda: optimizer.step((inputs, targets)), 0, SQUARES[settings.cell], settings.hidden
    )


def _peers(settings: BenchSettings) -> list[_Way]:
    """torch's own LSTM with as many weights: what a user would pick instead."""
    wanted = sum(
        p.numel()
        for p in RecurrentModel(
            settings.cell, (settings.hidden,), settings.symbols, settings.symbols
        ).parameters()
    )
    width = next(h for h in range(1, 10_000) if _lstm_size(h, settings.symbols) >= wanted)
    network = _TorchLSTM(settings.symbols, width)
    optimizer = torch.optim.Adam(network.parameters())
    inputs, targets = _batch(settings)

    def gradient() -> None:
        network.zero_grad()
        cross_entropy(network(inputs).flatten(0, 1), targets.flatten()).backward()

    def step() -> None:
        gradient()
        optimizer.step()

    return [
        _Way("gradient", f"torch.nn.LSTM-{width}, autograd", gradient, 3, 4, width),
        _Way("step", f"Adam on torch.nn.LSTM-{width}", step, 0, 4, width),
    ]


def _lstm_size(width: int, symbols: int) -> int:
    return 4 * width * (width + symbols) + symbols * width


class _TorchLSTM(nn.Module):
    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.symbols = symbols
        self.lstm = nn.LSTM(symbols, width, bias=False)
        self.readout = nn.Linear(width, symbols, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.lstm(nn.functional.one_hot(ids, self.symbols).float())[0])


def _outputs(model: RecurrentModel, flat: Tensor, inputs: Tensor) -> Tensor:
    return reference_forward(model.architecture, flat, inputs)[0]


def _flat(model: RecurrentModel) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def _autograd(model: RecurrentModel, inputs: Tensor, targets: Tensor) -> Tensor:
    flat = _flat(model).requires_grad_()
    loss = cross_entropy(_outputs(model, flat, inputs).flatten(0, 1), targets.flatten())
    return torch.autograd.grad(loss, flat)[0]


def _loss_curvature(outputs: Tensor, along: Tensor) -> Tensor:
    """H_loss R(outputs) of the softmax, divided by n."""
    p = outputs.softmax(-1)
    return p * (along - (p * along).sum(-1, keepdim=True)) / (outputs.shape[0] * outputs.shape[1])


def _double_backward(model: RecurrentModel, inputs: Tensor, targets: Tensor, v: Tensor) -> Tensor:
    """The product of BackPACK and its kind: Jv as the derivative of Jᵀu along v, then back."""
    flat = _flat(model).requires_grad_()
    outputs = _outputs(model, flat, inputs)
    u = torch.zeros_like(outputs, requires_grad=True)
    back = torch.autograd.grad(outputs, flat, u, create_graph=True)[0]
    along = torch.autograd.grad(back, u, v)[0]
    return torch.autograd.grad(outputs, flat, _loss_curvature(outputs.detach(), along))[0]


def _jvp_vjp(model: RecurrentModel, inputs: Tensor, targets: Tensor, v: Tensor) -> Tensor:
    """The product of curvlinops and its kind."""
    flat = _flat(model)

    def outputs_of(weights: Tensor) -> Tensor:
        return _outputs(model, weights, inputs)

    along: Tensor = torch.func.jvp(outputs_of, (flat,), (v,))[1]
    pulled: Any = torch.func.vjp(outputs_of, flat)
    return pulled[1](_loss_curvature(pulled[0], along))[0]
