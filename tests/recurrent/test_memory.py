"""Storing, recomputing, cutting into chunks or fitting a budget: never another result."""

import pytest
import torch

import rnnewton as rn
from recurrent.live_bytes import LiveBytes
from recurrent.support import LAMBDA, MU, Case, dampings, far, instance
from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells import CELLS
from rnnewton.recurrent.memory import plan_of
from rnnewton.recurrent.model import RecurrentModel

WAYS = [
    {"memory": "recomputed"},
    {"memory": "recomputed", "spacing": "uneven"},
    {"memory": 1},
    {"memory": 4_000},
    {"memory": 8_000, "spacing": "uneven"},
    {"memory": 1 << 30},
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("at", ["every", "last", "mask"])
def test_every_way_gives_the_same(cell: str, at: str) -> None:
    x = instance(Case(cell, (3, 2), steps=11, sequences=4, at=at, carried=True))
    stored, v = x.linearize(), torch.randn_like(x.flat)
    r_z, r_states = stored.jvp(v)
    for way in WAYS:
        lin = x.linearize(**way)
        assert abs(lin.loss - stored.loss) < 1e-13
        assert far(lin.gradient(), stored.gradient()) < 1e-13
        for form, tap in dampings(x):
            products = [a.gauss_newton(v, MU, LAMBDA, form, tap) for a in (lin, stored)]
            assert far(*products) < 1e-13, way
        z, states = lin.jvp(v)
        assert far(z, r_z) < 1e-13
        assert all(far(a, b) < 1e-13 for s, t in zip(states, r_states) for a, b in zip(s, t))
        assert far(lin.vjp(r_z, r_states), stored.vjp(r_z, r_states)) < 1e-13
        for a, b in zip(lin.last_states[0], stored.last_states[0]):
            assert all(far(one, other) < 1e-13 for one, other in zip(a, b))


@pytest.mark.parametrize("way", [{}, {"memory": "recomputed"}, {"memory": 5_000}], ids=str)
def test_chunks_weigh_by_their_scored_positions(way: dict[str, object]) -> None:
    x = instance(Case("mlstm", (3, 2), steps=6, sequences=5, at="mask", carried=True))
    v, whole = torch.randn_like(x.flat), x.linearize()
    chunks = []
    for start, stop in ((0, 1), (1, 4), (4, 5)):
        state = [type(s)(*(part[start:stop] for part in s)) for s in x.state]
        chunks.append(
            (x.inputs[:, start:stop], x.targets[:, start:stop], x.at[:, start:stop], state),
        )
    lin = x.model.linearize(chunks, **way)
    assert lin.count == whole.count
    assert abs(lin.loss - whole.loss) < 1e-13
    assert far(lin.gradient(), whole.gradient()) < 1e-13
    assert far(lin.gauss_newton(v, MU, LAMBDA), whole.gauss_newton(v, MU, LAMBDA)) < 1e-13
    assert far(torch.cat([z for z, _ in lin.jvp(v)], 1), whole.jvp(v)[0]) < 1e-13
    z, states = whole.jvp(v)
    parts = lin.jvp(v)
    assert far(lin.vjp([z for z, _ in parts], [s for _, s in parts]), whole.vjp(z, states)) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "spacing"), [*((cell, "even") for cell in CELLS), ("mlstm", "uneven")])
def test_recomputation_holds_a_fraction_of_the_bytes(cell: str, spacing: str) -> None:
    """At T = 1024: below 1/5 of storage for gated cells, 1/3 for RNN and mRNN, from the first pass to a
    product."""
    model = RecurrentModel(cell, (12,), 9, 9)
    inputs, targets = torch.randint(0, 9, (2, 1024, 4))
    v = torch.randn(model.layout.size)
    peaks = {}
    for memory in ("stored", "recomputed"):
        with LiveBytes() as live:
            lin = model.linearize(inputs, targets, memory=memory, spacing=spacing, kernels="eager")
            lin.gauss_newton(v, MU, LAMBDA)
        peaks[memory] = live.peak
        del lin
    assert peaks["stored"] > 1024 * 4 * 12 * 4
    assert peaks["recomputed"] / peaks["stored"] < (1 / 5 if CELLS[cell].gated else 1 / 3), peaks


def test_a_budget_is_kept() -> None:
    model = RecurrentModel("mlstm", (16,), 9, 9)
    inputs, targets = torch.randint(0, 9, (2, 64, 64))
    v = torch.randn(model.layout.size)
    peaks = []
    for budget in (1 << 30, 4_000_000, 1_000_000, 300_000):
        with LiveBytes() as live:
            lin = model.linearize(inputs, targets, memory=budget, kernels="eager")
            lin.gauss_newton(v, MU, LAMBDA)
        peaks.append(live.peak)
        del lin
        flat = 8 * model.layout.size * v.element_size()  # vectors as long as the weights are not part of it
        assert live.peak < budget + flat, (budget, live.peak)
    assert peaks == sorted(peaks, reverse=True)


def test_a_plan_stores_what_fits_and_recomputes_what_does_not() -> None:
    architecture = Architecture("lstm", (10,), 5, 5)
    assert plan_of(architecture, 100, 8, "stored", "even", 4).stored
    assert not plan_of(architecture, 100, 8, "recomputed", "even", 4).stored
    assert plan_of(architecture, 100, 8, 1 << 30, "even", 4).stored
    tight = plan_of(architecture, 100, 8, 10_000, "even", 4)
    assert not tight.stored and len(tight.tiles) > 1
    assert [tile.start for tile in tight.tiles] == [0, *(tile.stop for tile in tight.tiles)][:-1]
    assert tight.tiles[-1].stop == 8


@pytest.mark.parametrize("memory", [0, -5, True, 1.5, "often", None])
def test_a_memory_that_is_none_is_refused(memory: object) -> None:
    model = rn.RecurrentModel("rnn", 2, 3, 3)
    with pytest.raises(ValueError, match="memory="):
        model.linearize(
            torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64), memory=memory
        )


def test_an_unknown_spacing_is_refused() -> None:
    model = rn.RecurrentModel("rnn", 2, 3, 3)
    x = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="spacing='odd'"):
        model.linearize(x, x, spacing="odd")
