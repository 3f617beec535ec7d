"""The bracket probe, on models whose memory is built by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

import rnnewton as rn
from rnnewton.lab.time_lag import TimeLagSettings, figure, time_lag
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.errors import UserError

ALPHABET = Alphabet.of("[]Tabch ")


def bracket_model() -> rn.RecurrentModel:
    """An original LSTM whose one cell is set by '[' and kept for ever; ']' is the likelier the fuller it
    is."""
    model = rn.RecurrentModel(cell="lstm-original", hidden=(1,), inputs=len(ALPHABET), outputs=len(ALPHABET))
    opening, closing = ALPHABET.encode("[]").tolist()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.get_parameter("layers.0.W_hi")[0, opening] = 2.0
        model.get_parameter("layers.0.W_oh")[closing, 0] = 3.0
    model.alphabet = ALPHABET
    return model


def test_a_perfect_memory_keeps_its_ratio_for_all_steps() -> None:
    result = time_lag(bracket_model(), TimeLagSettings(steps=60, trials=3))
    expected = 3.0 * np.tanh(2 * 0.5 * 2.0 * 0.5) / np.log(10)  # two brackets, half-open gates
    assert result.lags.tolist() == [10, 20, 30, 40, 50, 60]
    np.testing.assert_allclose(result.means[0], expected, rtol=1e-5)
    np.testing.assert_allclose(result.means[1], 0.0, atol=1e-6)
    np.testing.assert_allclose(result.errors, 0.0, atol=1e-6)


def test_means_and_errors_are_of_the_trials() -> None:
    model = rn.RecurrentModel(
        cell="mlstm", hidden=(9,), inputs=len(ALPHABET), outputs=len(ALPHABET), init=rn.Normal(1.5)
    )
    model.alphabet = ALPHABET
    settings = TimeLagSettings(steps=20, smooth=4, trials=5, seed=2)
    fine = time_lag(model, TimeLagSettings(steps=20, smooth=1, trials=5, seed=2))
    result = time_lag(model, settings)
    np.testing.assert_allclose(result.means, fine.means.reshape(2, 5, 4).mean(-1), rtol=1e-6)
    assert (result.errors > 0).all()
    assert np.array_equal(result.means, time_lag(model, settings).means)
    other = time_lag(model, TimeLagSettings(steps=20, smooth=4, trials=5, seed=3))
    assert not np.array_equal(result.means, other.means)


def test_table_json_and_figure(tmp_path: Path) -> None:
    result = time_lag(bracket_model(), TimeLagSettings(steps=100, trials=1))
    document = result.to_dict()
    assert len(document["lags"]) == len(document["contexts"]["[["]["mean"]) == 10
    assert document["contexts"]["Th"]["standard_error"] is None
    rows = result.rows()
    assert rows[0][0] == 10
    assert rows[-1][0] == 100
    assert all(len(values) == 2 for _, values in rows)
    figure(result, tmp_path / "lag.png")
    assert (tmp_path / "lag.png").stat().st_size > 5_000


def test_models_without_brackets_or_letters() -> None:
    def model(symbols: str) -> rn.RecurrentModel:
        alphabet = Alphabet.of(symbols)
        made = rn.RecurrentModel(cell="rnn", hidden=(2,), inputs=len(alphabet), outputs=len(alphabet))
        made.alphabet = alphabet
        return made

    with pytest.raises(UserError, match=r"'\[' is not one symbol"):
        time_lag(model("abTh"), TimeLagSettings())
    with pytest.raises(UserError, match="none of the letters"):
        time_lag(model("[]"), TimeLagSettings(contexts=("[[",)))
    with pytest.raises(UserError, match="'T'"):
        time_lag(model("[]ab"), TimeLagSettings())
    with pytest.raises(UserError):
        TimeLagSettings(steps=5, smooth=10)
