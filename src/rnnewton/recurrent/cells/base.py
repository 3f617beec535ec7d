"""What a cell is: pure functions of one time step, on (B, ·) tensors.

Legend: B sequences, h units, G gates of the cell (h, input, forget, output; only h without gates).
R(x) is the derivative of x along a direction in the weights; d_x is the derivative of the error by x.
"""

from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor


class Hidden(NamedTuple):
    """The state of a cell without gates."""

    out: Tensor  # (B, h) H_out


class HiddenCell(NamedTuple):
    """The state of a gated cell."""

    out: Tensor  # (B, h) H_out
    cell: Tensor  # (B, h) H_state


State = Hidden | HiddenCell


class Drive(NamedTuple):
    """What reaches the ports of a cell from outside the recurrence: inputs, the layer below, biases."""

    gates: Tensor  # (B, G·h)
    chi: Tensor | None = None  # (B, h) W_mi I(t), factored cells
    xi: Tensor | None = None  # (B, h) R(W_mh) H(t-1), factored cells, in the tangent only


class Linear(Protocol):
    """A matrix W as the time loop needs it; how it multiplies (precision, library) is its own affair."""

    def carry(self, x: Tensor) -> Tensor: ...  # (B, columns) -> x Wᵀ (B, rows)
    def onto(self, base: Tensor, x: Tensor) -> Tensor: ...  # base + x Wᵀ; base may be overwritten
    def back(self, d: Tensor) -> Tensor: ...  # (B, rows) -> d W (B, columns)


class Weights(NamedTuple):
    """The weights inside the recurrence."""

    recurrent: Linear  # (G·h, h): from H(t-1), in factored cells from M(t), into the gates
    xi: Linear | None = None  # (h, h) W_mh


class After(NamedTuple):
    """Cotangents that arrive at one step's state: from later steps, the readout and the structural tap."""

    out: Tensor  # (B, h)
    cell: Tensor | None = None  # (B, h), gated cells
    zeta: Tensor | None = None  # (B, h) at the input of the last tanh


class Moment(NamedTuple):
    """What the forward pass left behind at one time step."""

    before: Any  # the cell's state, Hidden or HiddenCell
    after: Any
    kept: Any  # the cell's own NamedTuple of (B, ·) tensors, from its `slopes`
    drive: Drive | None  # only for cells whose derivatives are derived


class Cell:
    """A cell is this class with `forward`; `tangent` and `adjoint` are derived, or by hand, for speed."""

    name: ClassVar[str]
    gates: ClassVar[tuple[str, ...]] = ("h",)
    gated: ClassVar[bool] = False  # whether there is an internal state beside the output
    factored: ClassVar[bool] = False  # whether H(t-1) acts through M(t) = W_mi I(t) ⊙ W_mh H(t-1)
    biased: ClassVar[bool] = False  # whether the thesis gives it hidden biases

    def __init__(self, squash_input: bool = False) -> None:
        self.squash_input = squash_input

    def forward(self, weights: Weights, drive: Drive, before: Any) -> tuple[Any, Any]:
        """The state of this step, and what the derivatives need of it."""
        raise NotImplementedError

    def slopes(self, before: Any, after: Any, kept: Any) -> Any:
        """What tangent and adjoint multiply by, once per step for all products; from what `forward` kept."""
        return kept

    def tangent(self, weights: Weights, moment: Moment, drive: Drive, before: Any) -> Any:
        """R-forward: R(state) from R(drive) and R(state before)."""
        assert moment.drive is not None
        ports = present(moment.drive)

        def step(ports: dict[str, Tensor], before: Any) -> Any:
            return self.forward(weights, Drive(**ports), before)[0]

        r_ports = {port: value for port, value in present(drive).items() if port in ports}
        state = torch.func.jvp(step, (ports, moment.before), (r_ports, before))[1]
        return state if drive.xi is None else self._with_xi(weights, moment, drive.xi, state)

    def adjoint(self, weights: Weights, moment: Moment, after: After) -> tuple[Drive, Any]:
        """Back-propagation: cotangents of the drive and of the state before."""
        assert moment.drive is not None
        d_out = after.out
        if after.zeta is not None:  # H_out = tanh(zeta): d_out = d_zeta / (1 - H_out²)
            slope = 1 - moment.after.out**2
            d_out = d_out + torch.where(slope > 0, after.zeta / slope, 0.0)
        cotangent: Any = HiddenCell(d_out, _given(after.cell, d_out)) if self.gated else Hidden(d_out)
        ports = present(moment.drive)
        if self.factored and "xi" not in ports:
            ports["xi"] = torch.zeros_like(moment.before.out)

        def step(ports: dict[str, Tensor], before: Any) -> Any:
            return self.forward(weights, Drive(**ports), before)[0]

        d_ports, before = torch.func.vjp(step, ports, moment.before)[1](cotangent)
        return Drive(**d_ports), before

    def _with_xi(self, weights: Weights, moment: Moment, r_xi: Tensor, state: Any) -> Any:
        assert moment.drive is not None
        ports = present(moment.drive) | {"xi": torch.zeros_like(r_xi)}

        def step(xi: Tensor) -> Any:
            return self.forward(weights, Drive(**{**ports, "xi": xi}), moment.before)[0]

        more = torch.func.jvp(step, (ports["xi"],), (r_xi,))[1]
        return type(state)(*(a + b for a, b in zip(state, more)))


def present(drive: Drive) -> dict[str, Tensor]:
    return {port: value for port, value in drive._asdict().items() if value is not None}


def _given(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value


def add_product(base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """base + a ⊙ b, in one pass over memory."""
    return torch.addcmul(base, a, b)


def through_tanh(x: Tensor, out: Tensor) -> Tensor:
    """x ⊙ (1 − H ⊙ H), for H = tanh(·): how R-values and cotangents pass the last squashing."""
    return torch.addcmul(x, x * out, out, value=-1)


def tanh(x: Tensor) -> Tensor:
    """tanh(x) = 2σ(2x) − 1: torch's sigmoid runs several times faster than its tanh on CPUs."""
    return torch.sigmoid(2 * x) * 2 - 1
