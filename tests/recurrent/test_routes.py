"""Ways to multiply: other roundings of the same products, and a choice that is measured once."""

import json
from pathlib import Path

import pytest
import torch

from recurrent.support import LAMBDA, MU
from rnnewton.recurrent import routes
from rnnewton.recurrent.matrices import ROUTES, Arithmetic, OneDnnMatrix, onednn_takes
from rnnewton.recurrent.model import RecurrentModel

needs_onednn = pytest.mark.skipif(not onednn_takes(torch.zeros(1)), reason="this torch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize("hidden", [(7,), (5, 4)])
def test_routes_agree_to_rounding(hidden: tuple[int, ...]) -> None:
    model = RecurrentModel("mlstm", hidden, 6, 6)
    inputs, targets = torch.randint(0, 6, (2, 9, 3))
    v = torch.randn(model.layout.size)
    plain = model.linearize(inputs, targets, kernels="eager")
    model.route = "onednn"
    other = model.linearize(inputs, targets, kernels="eager")
    assert isinstance(other.net.weights.layers[0].recurrent, OneDnnMatrix)
    assert torch.allclose(plain.gradient(), other.gradient(), atol=1e-6)
    products = [lin.gauss_newton(v, MU, LAMBDA) for lin in (plain, other)]
    assert torch.allclose(*products, rtol=1e-5, atol=1e-6)


def test_onednn_is_only_for_float32() -> None:
    weight = torch.zeros(2, 2, dtype=torch.float64)
    matrix = Arithmetic(torch.float64, in_place=True, route="onednn").matrix(weight)
    assert not isinstance(matrix, OneDnnMatrix)


def test_an_unknown_route_is_refused() -> None:
    model = RecurrentModel("rnn", 2, 3, 3)
    model.route = "fast"
    x = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="route='fast'"):
        model.linearize(x, x)


def test_a_route_is_measured_once_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "deeper" / "route.json"
    speeds = {"plain": 100.0, "onednn": 300.0}
    monkeypatch.setattr(routes, "measure_routes", lambda: speeds)
    assert routes.fastest_route(cache) == "onednn"
    speeds["onednn"] = 50.0
    assert routes.fastest_route(cache) == "onednn"
    assert routes.fastest_route() == "plain"
    cache.write_text(json.dumps({"another machine": "onednn", routes.describe_machine(): "unheard of"}))
    assert routes.fastest_route(cache) == "plain"
    assert json.loads(cache.read_text()) == {"another machine": "onednn", routes.describe_machine(): "plain"}
    cache.write_text("{ cut off")
    assert routes.fastest_route(cache) == "plain"


def test_a_small_gain_is_no_reason() -> None:
    assert routes.MARGIN > 1
    measured = routes.measure_routes(rounds=1, repeats=1)
    assert set(measured) <= set(ROUTES) and all(speed > 0 for speed in measured.values())
