"""Every cell, in every stack, against torch.func on the slow reference, in float64.

A new cell joins by its line in the registry: nothing here names one.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from recurrent.support import (
    LAMBDA,
    MU,
    Case,
    Expected,
    Instance,
    Reference,
    dampings,
    discrepancy,
    expected,
    far,
    instance,
    variants,
)
from rnnewton.recurrent.cells import CELLS, Cell
from rnnewton.recurrent.cells.base import Drive, Hidden, Weights, tanh
from rnnewton.recurrent.losses import LOSSES

TOLERANCE = 1e-10

CASES = [case for cell in CELLS.values() for case in variants(cell.name, cell.gated)]
TINY = [
    Case(cell, (2,), loss, steps=3, sequences=2, at=at)
    for cell in CELLS
    for loss, at in (("softmax", "every"), ("squared", "mask"))
]


def check(e: Expected, **choices: Any) -> None:
    apart = discrepancy(e, **choices)
    assert max(apart.values()) < TOLERANCE, apart


@pytest.mark.parametrize("case", CASES, ids=str)
def test_passes_equal_torch_func_on_the_reference(case: Case) -> None:
    e = expected(case)
    check(e)
    check(e, memory="recomputed")


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_gradient_and_jvp_agree_with_central_differences(case: Case) -> None:
    x = instance(case)
    reference, lin = Reference(x), x.linearize()
    v = torch.randn_like(x.flat)
    step = 1e-5
    above, below = reference.run(x.flat + step * v), reference.run(x.flat - step * v)
    slope = (reference.loss(x.flat + step * v) - reference.loss(x.flat - step * v)) / (2 * step)
    r_z, r_states = lin.jvp(v)
    assert abs(lin.gradient() @ v - slope) < 1e-7 * max(1.0, abs(slope))
    assert far(r_z, (above[0] - below[0]) / (2 * step)) < 1e-7
    for layer, up, down in zip(r_states, above[1], below[1]):
        for r, one, other in zip(layer, up, down):
            assert far(r, (one - other) / (2 * step)) < 1e-7


@pytest.mark.parametrize("case", TINY, ids=str)
def test_product_is_the_dense_matrix_column_by_column(case: Case) -> None:
    x = instance(case)
    lin, identity = x.linearize(), torch.eye(x.flat.numel(), dtype=torch.float64)
    for form, tap in dampings(x):
        dense = dense_gauss_newton(x, form, tap)
        columns = [lin.gauss_newton(e, MU, LAMBDA, form, tap) for e in identity]
        product = torch.stack(columns, dim=1)
        assert far(product, dense) < TOLERANCE, (form, tap)
        assert far(product, product.T) < TOLERANCE
        assert torch.linalg.eigvalsh((product + product.T) / 2).min() > LAMBDA - 1e-12


def dense_gauss_newton(x: Instance, form: str, tap: str) -> Tensor:
    """Jᵀ (H/n) J + mu/n J_sᵀ S J_s + lambda I from whole Jacobians and a whole Hessian of the loss."""
    reference = Reference(x)
    j_z, j_states = torch.func.jacfwd(reference.run)(x.flat)
    z, states = reference.run(x.flat)
    size, outputs = x.flat.numel(), z.numel()

    def total(z: Tensor) -> Tensor:
        return LOSSES[x.model.architecture.loss].value(z, x.targets, reference.mask)

    hessian = torch.func.hessian(total)(z).reshape(outputs, outputs)
    j_z = j_z.reshape(outputs, size)
    dense = j_z.T @ hessian @ j_z / reference.count + LAMBDA * torch.eye(size, dtype=torch.float64)
    for state, jacobian in zip(states, j_states):
        h = state[0].reshape(-1, 1)
        j_h = jacobian[0].reshape(-1, size)
        j_zeta = j_h / (1 - h * h)  # H = tanh(zeta)
        j, s = (j_zeta, 1 - h * h) if form == "matching" else (j_h, torch.ones_like(h))
        if tap == "cell":
            j, s = jacobian[1].reshape(-1, size), torch.ones_like(h)
        dense = dense + MU * j.T @ (s * j) / reference.count
    return dense


@pytest.mark.parametrize("case", CASES[1::4], ids=str)
def test_adjoint_is_the_transpose_of_the_tangent(case: Case) -> None:
    x = instance(case)
    lin = x.linearize()
    v = torch.randn_like(x.flat)
    r_z, r_states = lin.jvp(v)
    u = torch.randn_like(r_z)
    d = [type(state)(*(torch.randn_like(part) for part in state)) for state in r_states]
    forward = (r_z * u).sum() + sum((r * c).sum() for s, t in zip(r_states, d) for r, c in zip(s, t))
    assert abs(forward - v @ lin.vjp(u, d)) < TOLERANCE * max(1.0, abs(forward))


@pytest.mark.parametrize("case", CASES[2::5], ids=str)
def test_damped_product_is_symmetric_and_positive(case: Case) -> None:
    x = instance(case)
    lin = x.linearize()
    v, w = torch.randn_like(x.flat), torch.randn_like(x.flat)
    for form, tap in dampings(x):
        gv, gw = (lin.gauss_newton(a, structural=MU, form=form, tap=tap) for a in (v, w))
        assert abs(w @ gv - v @ gw) < TOLERANCE * max(1.0, abs(w @ gv))
        assert v @ gv > 0


class UpdateGate(Cell):
    """A cell that nobody has written by hand: H(t) = u ⊙ H(t−1) + (1 − u) ⊙ h, with `forward` alone."""

    name = "update-gate"
    gates = ("h", "update")
    biased = True

    def forward(self, weights: Weights, drive: Drive, before: Hidden) -> tuple[Hidden, tuple[Tensor, ...]]:
        h, update = weights.recurrent.onto(drive.gates, before.out).chunk(2, dim=-1)
        u = torch.sigmoid(update)
        return Hidden(u * before.out + (1 - u) * tanh(h)), Hidden(u)


def derived(kind: type[Cell]) -> type[Cell]:
    """The cell without its hand-written tangent and adjoint."""
    bare = {"name": f"derived-{kind.name}", "tangent": Cell.tangent, "adjoint": Cell.adjoint}
    return type("Derived", (kind,), bare)


@pytest.mark.parametrize("kind", [UpdateGate, *map(derived, CELLS.values())], ids=lambda kind: kind.name)
def test_forward_alone_is_enough_to_train(kind: type[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CELLS, kind.name, kind)
    for case in variants(kind.name, kind.gated)[::4]:
        e = expected(case)
        check(e)
        check(e, memory="recomputed", spacing="uneven")
        model, x = e.x.model, e.x
        z, _ = model(x.inputs, x.state)
        own = torch.autograd.grad((z * e.u).sum(), list(model.parameters()))
        reference = Reference(x)
        want = reference.vjp((e.u, [tuple(torch.zeros_like(part) for part in d) for d in e.d]))
        assert far(torch.cat([part.reshape(-1) for part in own]), want) < TOLERANCE
