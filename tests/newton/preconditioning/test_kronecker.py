from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rnnewton.newton.preconditioning import Kronecker, KroneckerSettings

from .traffic import (
    SIZE,
    FakeLinearization,
    dense,
    gradients,
    lookup,
    one_hot,
    random_net,
)


def updated(kron: Kronecker, *chunks: list, count: int | None = None) -> Kronecker:
    n = count or sum(w[0].deltas.shape[0] * w[0].deltas.shape[1] for w in chunks)
    kron.update(FakeLinearization(list(chunks), n), None)
    return kron


def matrix(kron: Kronecker, size: int) -> Tensor:
    """M, column by column."""
    return torch.stack([kron.metric(e) for e in torch.eye(size, dtype=torch.float64)], 1)


def test_one_position_and_one_sequence_give_the_exact_block_fisher():
    d, a = torch.randn(1, 1, 3, dtype=torch.float64), torch.randn(1, 1, 4, dtype=torch.float64)
    kron = updated(Kronecker(), [dense("W", 0, d, a)])
    g = torch.outer(d[0, 0], a[0, 0]).flatten()
    torch.testing.assert_close(matrix(kron, 12), torch.outer(g, g))


def test_gradients_along_the_axes_give_the_exact_block_fisher_of_many_sequences():
    """Where the factors' bases diagonalise the Fisher, M is the Fisher: here every sequence moves one entry
    of W."""
    deltas = torch.zeros(2, 6, 3, dtype=torch.float64)
    inputs = torch.zeros(2, 6, 2, dtype=torch.float64)
    for b in range(6):  # the two time steps add up before they are squared
        deltas[:, b, b % 3] = 1.0 + b
        inputs[:, b, b // 3] = 0.5 + b
    weight = dense("W", 0, deltas, inputs)
    kron = updated(Kronecker(KroneckerSettings(moments=1.0)), [weight])
    flat = gradients(weight).flatten(1)
    torch.testing.assert_close(matrix(kron, 6), flat.T @ flat / 12)


def test_moments_and_factors_match_the_dense_construction():
    net = random_net()
    kron = updated(Kronecker(), net)
    m = matrix(kron, SIZE)
    for weight in net:
        inputs = (
            weight.inputs if weight.inputs.is_floating_point() else one_hot(weight.inputs, weight.columns)
        )
        a, d = inputs.flatten(0, 1), weight.deltas.flatten(0, 1)
        second = d.T @ d / len(d)
        if weight.inputs.is_floating_point():
            first = a.T @ a / len(a)
            basis = torch.linalg.eigh(first).eigenvectors
        else:
            counts = torch.bincount(weight.inputs.flatten(), minlength=weight.columns).double() + 0.5
            first, basis = torch.diag(counts / counts.sum()), torch.eye(weight.columns, dtype=torch.float64)
        turned = torch.linalg.eigh(second).eigenvectors.T @ gradients(weight) @ basis
        s = turned.square().sum(0) / len(a)
        spectrum = 0.9 * s + 0.1 * torch.outer(
            torch.linalg.eigvalsh(second), torch.diag(basis.T @ first @ basis)
        )
        q = torch.kron(torch.linalg.eigh(second).eigenvectors.contiguous(), basis.contiguous())
        block = slice(weight.start, weight.start + weight.rows * weight.columns)
        torch.testing.assert_close(m[block, block], q @ torch.diag(spectrum.flatten()) @ q.T)
        m[block, block] = 0
    assert torch.count_nonzero(m) == 0  # nothing between the blocks


def test_solve_is_the_inverse_of_the_damped_matrix():
    kron = updated(Kronecker(), random_net())
    v = torch.randn(SIZE, dtype=torch.float64)
    system = 1.7 * matrix(kron, SIZE) + (0.3 + 0.01 * kron.mean()) * torch.eye(SIZE, dtype=torch.float64)
    torch.testing.assert_close(kron.solve(v, damping=0.3, kappa=0.7), torch.linalg.solve(system, v))
    assert kron.mean() == pytest.approx(float(matrix(kron, SIZE).trace()) / SIZE)


def test_chunks_slabs_and_whole_batch_agree():
    net = random_net(sequences=6)
    parts = [
        [
            type(w)(w.name, w.start, w.rows, w.columns, w.inputs[:, i : i + 3], w.deltas[:, i : i + 3])
            for w in net
        ]
        for i in (0, 3)
    ]
    tiny = KroneckerSettings(slab_bytes=1)
    v = torch.randn(SIZE, dtype=torch.float64)
    whole = updated(Kronecker(), net)
    torch.testing.assert_close(updated(Kronecker(tiny), net).metric(v), whole.metric(v))
    # the first chunk chooses the bases, so that two chunks are compared in what does not depend on a basis
    cut = updated(Kronecker(), *parts)
    for weight in net:
        block = slice(weight.start, weight.start + weight.rows * weight.columns)
        traces = [matrix(k, SIZE)[block, block].trace() for k in (whole, cut)]
        torch.testing.assert_close(*traces)


def test_unscored_positions_scale_the_matrix_and_not_the_factors():
    net = random_net(length=7, sequences=5)
    every, last = updated(Kronecker(), net, count=35), updated(Kronecker(), net, count=5)
    v = torch.randn(SIZE, dtype=torch.float64)
    torch.testing.assert_close(last.metric(v), 7 * every.metric(v))


def test_averages_start_even_and_then_forget():
    """β = min(1 − 1/n, 0.9); with a weight of one element M is a number and its history can be written
    down."""

    def scalar(value: float) -> list:
        one = torch.ones(1, 1, 1, dtype=torch.float64)
        return [dense("w", 0, value**0.5 * one, one)]

    kron, expected = Kronecker(), 0.0
    for n in range(1, 40):
        updated(kron, scalar(float(n)))
        beta = min(1 - 1 / n, 0.9)
        expected = beta * expected + (1 - beta) * n
        assert kron.mean() == pytest.approx(expected, rel=1e-9)


def test_bases_are_refreshed_when_due():
    kron = Kronecker()
    bases = []
    for seed in range(8):
        updated(kron, random_net(seed))
        bases.append(kron.state_dict()["factors"][1]["basis"])
    changed = [not torch.equal(a, b) for a, b in pairwise(bases)]
    assert changed == [True, True, False, False, True, False, False]


def test_projected_moments_are_the_diagonal_of_the_old_matrix_in_the_new_basis():
    kron = updated(Kronecker(KroneckerSettings(moments=1.0)), random_net(1))
    old = matrix(kron, SIZE)
    updated(kron, random_net(2))
    state = kron.state_dict()
    fresh = Kronecker(KroneckerSettings(moments=1.0))
    fresh.load_state_dict(state)
    # M_2 = diag part of M_1 / 2 + the second batch's own moments / 2, both in the second bases
    weight = random_net(2)[3]
    rows = state["factors"][state["weights"][3]["outputs"]]["basis"]
    columns = state["factors"][state["weights"][3]["inputs"]]["basis"]
    q = torch.kron(rows.contiguous(), columns.contiguous())
    block = slice(weight.start, weight.start + 6)
    own = (rows.T @ gradients(weight) @ columns).square().sum(0).flatten() / 35
    expected = torch.diag(q.T @ old[block, block] @ q) / 2 + own / 2
    torch.testing.assert_close(matrix(fresh, SIZE)[block, block], q @ torch.diag(expected) @ q.T)


def test_rare_symbols_do_not_blow_up():
    """A symbol that the batches never hold has a gradient and no curvature: its step is bounded by the
    mean's floor."""
    g = torch.Generator().manual_seed(0)
    kron = Kronecker()
    for _ in range(10):
        symbols = torch.randint(0, 9, (20, 10), generator=g)  # the tenth symbol never comes
        deltas = torch.randn(20, 10, 4, generator=g)
        updated(kron, [lookup("W", 0, deltas, symbols, 10)])
    step = kron.solve(torch.ones(40), damping=0.0).view(4, 10)
    assert float(step[:, 9].abs().max()) <= 1 / (0.01 * kron.mean())
    assert torch.isfinite(step).all()


def test_given_frequencies_replace_the_batch_own():
    symbols = torch.zeros(3, 2, dtype=torch.int64)
    deltas = torch.ones(3, 2, 1, dtype=torch.float64)
    given = torch.tensor([1.0, 3.0])
    kron = updated(
        Kronecker(KroneckerSettings(moments=0.0), symbol_frequencies=given),
        [lookup("W", 0, deltas, symbols, 2)],
    )
    torch.testing.assert_close(matrix(kron, 2).diag(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    with pytest.raises(ValueError, match="2 symbols"):
        updated(Kronecker(symbol_frequencies=torch.ones(3)), [lookup("W", 0, deltas, symbols, 2)])


def test_weights_without_traffic_get_the_mean():
    kron = updated(Kronecker(), random_net())
    v = torch.randn(SIZE + 5, dtype=torch.float64)
    torch.testing.assert_close(kron.metric(v)[SIZE:], kron.mean() * v[SIZE:])
    torch.testing.assert_close(kron.solve(v, 0.2, 1.0)[SIZE:], v[SIZE:] / (2.01 * kron.mean() + 0.2))


def test_before_any_update_and_without_any_traffic_it_is_the_identity():
    v = torch.randn(5)
    kron = Kronecker()
    assert torch.equal(kron.solve(v, 0.1), v) and torch.equal(kron.metric(v), v)
    kron.update(FakeLinearization([[]], 3), None)
    assert torch.equal(kron.solve(v, 0.1), v)
    kron.update(FakeLinearization([], 3), None)
    assert torch.equal(kron.solve(v, 0.1), v)


def test_non_finite_traffic_changes_nothing_that_counts():
    kron = updated(Kronecker(), random_net(0))
    v = torch.randn(SIZE, dtype=torch.float64)
    before = kron.metric(v)
    bad = random_net(1)
    bad[1].deltas[2, 3, 1] = float("inf")
    updated(kron, bad)
    torch.testing.assert_close(kron.metric(v), before)
    assert kron.steps == 1
    first = Kronecker()
    updated(first, bad)
    assert torch.equal(first.solve(v, 0.0), v)
    updated(first, random_net(0))
    torch.testing.assert_close(first.metric(v), before)


def test_a_failed_eigendecomposition_keeps_the_old_basis(monkeypatch: pytest.MonkeyPatch):
    kron = updated(Kronecker(), random_net(0))
    old = kron.state_dict()["factors"][1]["basis"]

    def fail(*_: object) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    updated(kron, random_net(1))
    assert torch.equal(kron.state_dict()["factors"][1]["basis"], old)
    fresh = updated(Kronecker(), random_net(0))
    assert torch.equal(fresh.state_dict()["factors"][1]["basis"], torch.eye(6, dtype=torch.float64))


def test_state_goes_through_the_dict_to_the_bit():
    kron = Kronecker()
    for seed in range(4):
        updated(kron, random_net(seed, dtype=torch.float32))
    state = kron.state_dict()
    json.dumps(_without_tensors(state))
    for part in (
        *state["factors"],
        *state["weights"],
    ):  # row-major, so that no file format can change the rounding
        assert all(value.is_contiguous() for value in part.values() if isinstance(value, Tensor))
    other = Kronecker()
    other.load_state_dict(state)
    v = torch.randn(SIZE)
    assert torch.equal(kron.solve(v, 0.1, 0.5), other.solve(v, 0.1, 0.5)) and kron.mean() == other.mean()
    for seed in range(4, 8):
        updated(kron, random_net(seed, dtype=torch.float32))
        updated(other, random_net(seed, dtype=torch.float32))
        assert torch.equal(kron.solve(v, 0.1, 0.5), other.solve(v, 0.1, 0.5))


def test_another_model_is_refused():
    kron = updated(Kronecker(), random_net())
    with pytest.raises(ValueError, match="one belongs to one model"):
        updated(kron, random_net()[:2])


def test_shared_deltas_share_one_factor():
    kron = updated(Kronecker(), random_net())
    weights = kron.state_dict()["weights"]
    assert weights[0]["outputs"] == weights[1]["outputs"] == weights[2]["outputs"] != weights[3]["outputs"]
    assert len(kron.state_dict()["factors"]) == 6


def _without_tensors(value: object) -> object:
    if isinstance(value, dict):
        return {k: _without_tensors(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_tensors(v) for v in value]
    return "tensor" if isinstance(value, Tensor) else value
