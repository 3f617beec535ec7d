from __future__ import annotations

import json

import pytest
import torch

from rnnewton.newton.preconditioning import (
    PRECONDITIONERS,
    Diagonal,
    Identity,
    Kronecker,
    Krylov,
    Preconditioner,
    preconditioner_of,
)

from .traffic import SIZE, FakeLinearization, gradients, random_net


def spd(size: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=g, dtype=torch.float64)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


def conjugate_directions(a: torch.Tensor, b: torch.Tensor, count: int) -> list[torch.Tensor]:
    directions, r = [], b.clone()
    d = r.clone()
    for _ in range(count):
        directions.append(d)
        alpha = (r @ r) / (d @ a @ d)
        new = r - alpha * (a @ d)
        d = new + (new @ new) / (r @ r) * d
        r = new
    return directions


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_all_follow_the_protocol(name: str):
    preconditioner = preconditioner_of(name)
    assert isinstance(preconditioner, Preconditioner) and preconditioner.kind == name
    cost = preconditioner.update(FakeLinearization([random_net()], 35), None)
    assert cost == (0 if name in ("none", "krylov") else 1)
    v = torch.randn(SIZE, dtype=torch.float64)
    assert float(v @ preconditioner.solve(v, 0.1)) > 0
    assert float(v @ preconditioner.metric(v)) > 0
    assert preconditioner.mean() > 0
    preconditioner.observe_cg([v], [2 * v])
    state = preconditioner.state_dict()
    other = preconditioner_of(name)
    other.load_state_dict(state)
    assert torch.equal(other.solve(v, 0.1), preconditioner.solve(v, 0.1))
    wrong = preconditioner_of("none" if name != "none" else "diagonal")
    with pytest.raises(ValueError, match="saved state"):
        wrong.load_state_dict(state)


def test_names():
    built = Kronecker()
    assert preconditioner_of(built) is built
    assert isinstance(preconditioner_of("none"), Identity)
    with pytest.raises(ValueError, match="kronecker"):
        preconditioner_of("kronekcer")


def test_diagonal_is_the_mean_squared_gradient_to_the_power():
    net = random_net()
    diagonal = Diagonal()
    diagonal.update(FakeLinearization([net], 35), None)
    expected = torch.cat([gradients(w).square().sum(0).flatten() / 35 for w in net])
    v = torch.randn(SIZE + 2, dtype=torch.float64)
    solved = diagonal.solve(v, damping=0.2, kappa=0.5)
    torch.testing.assert_close(solved[:SIZE], v[:SIZE] / (1.5 * expected + 0.2) ** 0.75)
    torch.testing.assert_close(solved[SIZE:], v[SIZE:] / (1.5 * expected.mean() + 0.2) ** 0.75)
    torch.testing.assert_close(diagonal.metric(v)[:SIZE], expected * v[:SIZE])
    json.dumps(diagonal.state_dict()["starts"])


def test_krylov_inverts_exactly_on_the_directions_it_has_seen():
    """BFGS meets the secant equation: with all p directions of CG the inverse is exact, with fewer the last
    is."""
    a, b = spd(8), torch.randn(8, dtype=torch.float64)
    directions = conjugate_directions(a, b, 8)
    krylov = Krylov(pairs=8)
    krylov.observe_cg(directions, [a @ d for d in directions])
    v = torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(krylov.solve(v, 0.0), torch.linalg.solve(a, v), rtol=1e-6, atol=1e-8)
    few = Krylov(pairs=3)
    few.observe_cg(directions[:3], [a @ d for d in directions[:3]])
    for d in directions[:3]:  # conjugate pairs: every secant equation holds, not only the last
        torch.testing.assert_close(few.solve(a @ d, 0.0), d)


def test_krylov_is_symmetric_positive_definite_and_ignores_the_scale_of_pairs():
    a, b = spd(8), torch.randn(8, dtype=torch.float64)
    directions = conjugate_directions(a, b, 4)
    krylov, scaled = Krylov(3), Krylov(3)
    krylov.observe_cg(directions, [a @ d for d in directions])
    scaled.observe_cg([-3 * d for d in directions], [-3 * (a @ d) for d in directions])
    inverse = torch.stack([krylov.solve(e, 0.0) for e in torch.eye(8, dtype=torch.float64)])
    torch.testing.assert_close(inverse, inverse.T)
    assert float(torch.linalg.eigvalsh(inverse)[0]) > 0
    torch.testing.assert_close(krylov.solve(b, 0.0), scaled.solve(b, 0.0))


def test_krylov_leaves_out_flat_and_broken_directions():
    krylov = Krylov()
    v = torch.ones(3)
    krylov.observe_cg([v, v, v], [0 * v, -v, float("nan") * v])
    assert torch.equal(krylov.solve(v, 0.0), v)
    krylov.observe_cg([], [])
    assert torch.equal(krylov.solve(v, 0.0), v)
    with pytest.raises(ValueError, match="at least 1"):
        Krylov(0)
    with pytest.raises(ValueError, match="power"):
        Diagonal(0.0)
