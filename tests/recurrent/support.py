"""Small networks, batches, and what torch.func says about them on the slow reference loop.

Legend: T steps, B sequences, h units, V inputs, O outputs, P weights.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import rnnewton as rn
from rnnewton.recurrent.blocks import Block
from rnnewton.recurrent.linearization import RecurrentLinearization
from rnnewton.recurrent.losses import LOSSES
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.recurrent.reference import reference_forward, reference_loss

SYMBOLS, REAL_INPUTS, REAL_OUTPUTS = 5, 2, 3
MU, LAMBDA = 0.3, 0.1


@dataclass(frozen=True)
class Case:
    """One network on one batch, and how it is computed and damped."""

    cell: str
    hidden: tuple[int, ...] = (3,)
    loss: str = "softmax"
    direct_input: bool = True
    direct_output: bool = True
    options: dict[str, Any] = field(default_factory=dict)  # more arguments of the model
    steps: int = 5
    sequences: int = 2
    at: str = "every"  # or "last", "mask"
    carried: bool = False  # whether the sequences begin in a state of their own
    device: str = "cpu"

    def __str__(self) -> str:
        wires = ("i" if self.direct_input else "-") + ("o" if self.direct_output else "-")
        parts = [self.cell, "x".join(map(str, self.hidden)), wires, self.loss, self.at, *self.options]
        return "/".join(parts)


class Instance(NamedTuple):
    model: RecurrentModel
    inputs: Tensor
    targets: Tensor
    at: Any
    state: Any

    @property
    def flat(self) -> Tensor:
        return self.model._flat().detach()

    def linearize(self, **choices: Any) -> RecurrentLinearization:
        return self.model.linearize(self.inputs, self.targets, self.state, self.at, **choices)

    def block(self) -> Block:
        return self.model._blocks(self.inputs, self.targets, self.state, self.at, self.flat)[0][0]


def instance(case: Case) -> Instance:
    """Float64 weights of a size at which every non-linearity bends."""
    real = case.loss == "squared"
    model = RecurrentModel(
        case.cell,
        case.hidden,
        rn.Real(REAL_INPUTS) if real else SYMBOLS,
        rn.Real(REAL_OUTPUTS) if real else SYMBOLS,
        case.loss,
        direct_input=case.direct_input,
        direct_output=case.direct_output,
        init=rn.Normal(0.7),
        seed=5,
        **case.options,
    ).double()
    random = torch.Generator().manual_seed(7)
    shape = (case.steps, case.sequences)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "B_" in name:  # biases start at zero, which would hide them
                parameter.copy_(normal(*parameter.shape))
    if real:
        inputs, targets = normal(*shape, REAL_INPUTS), normal(*shape, REAL_OUTPUTS)
    else:
        inputs, targets = (torch.randint(0, SYMBOLS, shape, generator=random) for _ in range(2))
    at: Any = torch.rand(shape, generator=random) < 0.6 if case.at == "mask" else case.at
    state = None
    if case.carried:
        state = [type(s)(*(normal(*x.shape) for x in s)) for s in model.zero_state(case.sequences)]
    return _moved(Instance(model, inputs, targets, at, state), case.device)


def _moved(x: Instance, device: str) -> Instance:
    at = x.at.to(device) if isinstance(x.at, Tensor) else x.at
    state = x.state and [type(s)(*(part.to(device) for part in s)) for s in x.state]
    return Instance(x.model.to(device), x.inputs.to(device), x.targets.to(device), at, state)


class Reference:
    """Everything by torch.func on the reference loop: no line of the passes is used."""

    def __init__(self, x: Instance) -> None:
        self.x, self.flat = x, x.flat
        self.block = x.block()
        steps, sequences = x.inputs.shape[:2]
        everywhere = torch.ones(steps, sequences, dtype=torch.bool, device=x.inputs.device)
        self.mask = x.at if isinstance(x.at, Tensor) else everywhere
        if isinstance(x.at, str) and x.at == "last":
            self.mask = everywhere.clone()
            self.mask[:-1] = False
        self.count = int(self.mask.sum())

    def loss(self, flat: Tensor) -> Tensor:
        return reference_loss(self.x.model.architecture, flat, self.block) / self.count

    def run(self, flat: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """z (T, B, O), and per layer the states over time, each (T, B, h)."""
        z, courses = reference_forward(self.x.model.architecture, flat, self.x.inputs, self.block.state)
        layers = range(len(courses[0]))
        return z, [tuple(torch.stack(parts) for parts in zip(*(step[i] for step in courses))) for i in layers]

    def jvp(self, v: Tensor) -> Any:
        return torch.func.jvp(self.run, (self.flat,), (v,))[1]

    def vjp(self, cotangents: Any) -> Tensor:
        return torch.func.vjp(self.run, self.flat)[1](cotangents)[0]

    def outer(self, z: Tensor, r_z: Tensor) -> Tensor:
        """H_loss R(z), of the loss summed over the scored positions, by torch.func on the loss alone."""
        loss = LOSSES[self.x.model.architecture.loss]

        def total(z: Tensor) -> Tensor:
            return loss.value(z, self.x.targets, self.mask)

        return torch.func.jvp(torch.func.grad(total), (z,), (r_z,))[1]

    def penalty(self, state: tuple[Tensor, ...], r: tuple[Tensor, ...], form: str, tap: str) -> Any:
        """mu S R(states) as cotangents of the states. With H = tanh(zeta): J_zetaᵀ (1 − H²) J_zeta is
        J_Hᵀ 1/(1 − H²) J_H."""
        zeros = [torch.zeros_like(part) for part in state]
        if tap == "cell":
            zeros[1] = MU * r[1]
        else:
            zeros[0] = MU * r[0] / ((1 - state[0] ** 2) if form == "matching" else 1.0)
        return tuple(zeros)

    def product(self, v: Tensor, form: str = "matching", tap: str = "output", mu: bool = True) -> Tensor:
        z, states = self.run(self.flat)
        r_z, r_states = self.jvp(v)
        taps = [self.penalty(state, r, form, tap) for state, r in zip(states, r_states)]
        if not mu:
            taps = [tuple(torch.zeros_like(part) for part in state) for state in states]
        return self.vjp((self.outer(z, r_z), taps)) / self.count + LAMBDA * v


class Expected(NamedTuple):
    """The answers of the reference, to be compared with those of the passes."""

    x: Instance
    v: Tensor  # a direction
    u: Tensor  # cotangents of the outputs
    d: list[tuple[Tensor, ...]]  # and of the states
    loss: Tensor
    gradient: Tensor
    jvp: Any
    vjp: Tensor
    products: dict[tuple[str, str], Tensor]


def dampings(x: Instance) -> list[tuple[str, str]]:
    gated = len(x.model.zero_state(1)[0]) == 2
    return [("matching", "output"), ("squared", "output"), *([("squared", "cell")] if gated else [])]


def expected(case: Case) -> Expected:
    x = instance(case)
    reference = Reference(x)
    random = torch.Generator().manual_seed(11)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=random, dtype=torch.float64).to(like)

    v = normal(x.flat)
    z, states = reference.run(x.flat)
    u, d = normal(z), [tuple(normal(part) for part in state) for state in states]
    return Expected(
        x,
        v,
        u,
        d,
        reference.loss(x.flat),
        torch.func.grad(reference.loss)(x.flat),
        reference.jvp(v),
        reference.vjp((u, d)),
        {(form, tap): reference.product(v, form, tap) for form, tap in dampings(x)},
    )


def discrepancy(e: Expected, **choices: Any) -> dict[str, float]:
    """How far the passes are from the reference: the check that every cell must pass."""
    lin = e.x.linearize(**choices)
    r_z, r_states = lin.jvp(e.v)
    cotangents = [type(s)(*d) for s, d in zip(r_states, e.d)]
    apart = {
        "loss": far(lin.loss, e.loss),
        "gradient": far(lin.gradient(), e.gradient),
        "jvp": far(r_z, e.jvp[0]),
        "jvp of the states": max(
            far(got, want) for layer, wanted in zip(r_states, e.jvp[1]) for got, want in zip(layer, wanted)
        ),
        "vjp": far(lin.vjp(e.u, cotangents), e.vjp),
    }
    for (form, tap), product in e.products.items():
        got = lin.gauss_newton(e.v, structural=MU, tikhonov=LAMBDA, form=form, tap=tap)
        apart[f"product, {form} at {tap}"] = far(got, product)
    return apart


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference, over the largest entry where that is above one; NaN counts as infinitely
    far."""
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got - want).abs().max() / want.abs().max().clamp(min=1.0))


def variants(cell: str, gated: bool) -> list[Case]:
    """1 and 3 layers × direct connections on and off × both losses, with what varies least spread over
    them."""
    cases: list[Case] = []
    wirings = [((3,), True, True)]
    wirings += [((3, 2, 4), i, o) for i in (True, False) for o in (True, False)]
    for hidden, direct_input, direct_output in wirings:
        for loss in ("softmax", "squared"):
            case = Case(cell, hidden, loss, direct_input, direct_output)
            cases.append(case)
            extra = {"bias": True, "output_bias": True} | ({"squash_input": True} if gated else {})
            if direct_input == direct_output:
                at = "mask" if loss == "softmax" else "last"
                cases.append(replace(case, at=at, options=extra, carried=True))
    return cases
