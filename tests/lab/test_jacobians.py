"""Jacobians over time against products of one-step Jacobians by torch.func."""

from pathlib import Path

import numpy as np
import pytest
import torch

import rnnewton as rn
from rnnewton.lab.jacobians import JacobianSettings, figure, jacobians
from rnnewton.text.errors import UserError

IDS = np.random.default_rng(0).integers(0, 5, 60).astype(np.uint8)


def model_for(cell: str, hidden: tuple[int, ...]) -> rn.RecurrentModel:
    return rn.RecurrentModel(
        cell=cell, hidden=hidden, inputs=5, outputs=5, init=rn.Normal(0.8), seed=2
    ).double()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "lstm-original", "mrnn", "mlstm"])
def test_they_are_products_of_one_step_jacobians(cell: str) -> None:
    """One place, so that there is no mean to take; 59 symbols before and 1 of choice left: the start is
    known."""
    model = model_for(cell, (3,))
    settings = JacobianSettings(lags=6, places=1, context=53)
    found = jacobians(model, IDS, settings)
    assert found.exact
    with torch.no_grad():
        _, state = model(torch.from_numpy(IDS[:53].astype(np.int64))[:, None])
    kind = type(state[0])
    steps = []
    for symbol in IDS[53:59].tolist():

        def step(*parts: torch.Tensor, symbol: int = symbol) -> torch.Tensor:
            _, after = model.reference(torch.tensor([[symbol]]), [kind(*parts)])
            return torch.cat(tuple(after[-1][0]), -1)[0]

        jacobian = torch.autograd.functional.jacobian(step, tuple(state[0]))
        steps.append(torch.cat([part[:, 0] for part in jacobian], -1))
        with torch.no_grad():
            _, state = model(torch.tensor([[symbol]]), state)
    size = len(steps[0])
    product = torch.eye(size, dtype=torch.float64)
    for lag, jacobian in enumerate([torch.eye(size, dtype=torch.float64), *steps[::-1]]):
        product = product @ jacobian
        assert found.root_mean_square[0, lag] == pytest.approx(float(product.norm()) / size**0.5, rel=1e-9)
        assert found.largest[0, lag] == pytest.approx(float(torch.linalg.matrix_norm(product, 2)), rel=1e-9)


def test_a_stack_has_a_curve_per_layer_that_begins_at_one() -> None:
    found = jacobians(model_for("mlstm", (4, 3)), IDS, JacobianSettings(lags=9, places=3, context=10))
    assert found.root_mean_square.shape == found.largest.shape == (2, 10)
    np.testing.assert_allclose(found.root_mean_square[:, 0], 1.0)
    np.testing.assert_allclose(found.largest[:, 0], 1.0)
    assert not np.allclose(found.root_mean_square[0, 1:], found.root_mean_square[1, 1:])


def test_random_columns_estimate_the_root_mean_square() -> None:
    model = model_for("rnn", (40,))
    exact = jacobians(model, IDS, JacobianSettings(lags=4, places=2, context=10))
    some = jacobians(model, IDS, JacobianSettings(lags=4, places=2, context=10, columns=39))
    assert exact.exact
    assert not some.exact
    assert np.isnan(some.largest).all()
    np.testing.assert_allclose(some.root_mean_square, exact.root_mean_square, rtol=0.25)
    assert some.to_dict()["largest"] is None


def test_figure_and_faults(tmp_path: Path) -> None:
    figure(jacobians(model_for("rnn", (2,)), IDS, JacobianSettings(lags=3, context=5)), tmp_path / "j.png")
    assert (tmp_path / "j.png").stat().st_size > 5_000
    with pytest.raises(UserError, match="take fewer"):
        jacobians(model_for("rnn", (2,)), IDS, JacobianSettings())
    with pytest.raises(UserError):
        JacobianSettings(lags=0)
