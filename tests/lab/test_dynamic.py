"""Dynamic evaluation: each character is scored before it is learned, and the model comes back unchanged."""

import numpy as np
import pytest
import torch

import rnnewton as rn
from rnnewton.lab.dynamic import DynamicSettings, gradient_rms, learner_for
from rnnewton.lab.evaluation import Reader, evaluate
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.errors import UserError

TEXT = "abracadabra, hocus pocus, " * 30


@pytest.fixture
def model() -> rn.RecurrentModel:
    alphabet = Alphabet.of(TEXT)
    made = rn.RecurrentModel(
        cell="rnn", hidden=(12,), inputs=len(alphabet), outputs=len(alphabet), init=rn.Normal(0.5), seed=1
    )
    made.alphabet = alphabet
    return made


def bits(model: rn.RecurrentModel, text: str, settings: DynamicSettings) -> np.ndarray:
    ids = model.alphabet.encode(text).numpy()
    rms = gradient_rms(model, ids, settings.segment) if settings.rule == "rms" else None
    with learner_for(model, settings, rms) as learner:
        return Reader(model, learner).read(ids)


def test_rate_zero_is_static_to_the_bit(model: rn.RecurrentModel) -> None:
    static = evaluate(model, TEXT).bits_per_character
    with learner_for(model, DynamicSettings(rate=0.0)) as learner:
        assert evaluate(model, TEXT, learner).bits_per_character == static
    tiny = bits(model, TEXT, DynamicSettings(rate=1e-12)) - Reader(model).read(
        model.alphabet.encode(TEXT).numpy()
    )
    assert np.abs(tiny).max() < 1e-5


@pytest.mark.parametrize(
    "settings", [DynamicSettings(segment=7), DynamicSettings("rms", segment=7, pull=0.01)]
)
def test_the_last_character_changes_no_earlier_surprise(
    model: rn.RecurrentModel, settings: DynamicSettings
) -> None:
    with learner_for(model, settings, gradient_rms(model, model.alphabet.encode(TEXT).numpy(), 7)) as learner:
        first = Reader(model, learner).read(model.alphabet.encode(TEXT).numpy())
    with learner_for(model, settings, gradient_rms(model, model.alphabet.encode(TEXT).numpy(), 7)) as learner:
        second = Reader(model, learner).read(model.alphabet.encode(TEXT[:-1] + "h").numpy())
    assert np.array_equal(first[:-1], second[:-1])
    assert first[-1] != second[-1]


def test_the_first_segment_is_scored_before_anything_is_learned(model: rn.RecurrentModel) -> None:
    found = bits(model, TEXT, DynamicSettings(rate=1.0, segment=10))
    static = Reader(model).read(model.alphabet.encode(TEXT).numpy())
    np.testing.assert_allclose(found[:11], static[:11], atol=1e-5)
    assert np.abs(found[11:] - static[11:]).max() > 1e-2


@pytest.mark.parametrize("settings", [DynamicSettings(rate=0.5), DynamicSettings("rms", rate=2e-3)])
def test_it_learns_a_text_that_repeats_and_leaves_the_model_as_it_was(
    model: rn.RecurrentModel, settings: DynamicSettings
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    static = Reader(model).read(model.alphabet.encode(TEXT).numpy()).mean()
    assert bits(model, TEXT, settings).mean() < static - 0.5
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_step_is_the_gradient_of_the_segments_mean_loss(model: rn.RecurrentModel) -> None:
    ids = model.alphabet.encode(TEXT)[:9, None]
    flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    expected = flat - 0.5 * model.linearize(ids[:-1], ids[1:]).gradient()
    with learner_for(model, DynamicSettings(rate=0.5)) as learner:
        assert learner is not None
        learner.score_and_learn(ids[:-1], ids[1:], None)
        found = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    torch.testing.assert_close(found, expected)


def test_the_pull_leads_back_to_the_trained_weights(model: rn.RecurrentModel) -> None:
    static = Reader(model).read(model.alphabet.encode(TEXT).numpy())
    pulled = bits(model, TEXT, DynamicSettings(rate=1e-9, pull=1.0))
    np.testing.assert_allclose(pulled, static, atol=1e-5)


def test_the_rms_is_of_per_segment_gradients(model: rn.RecurrentModel) -> None:
    ids = model.alphabet.encode(TEXT)[:21]
    state, squares = None, 0.0
    for start in (0, 10):
        block = ids[start : start + 11, None]
        gradient = model.linearize(block[:-1], block[1:], state=state).gradient()
        squares = squares + gradient**2
        with torch.no_grad():
            _, state = model(block[:-1], state)
    found = torch.cat([rms.flatten() for rms in gradient_rms(model, ids.numpy(), 10)])
    torch.testing.assert_close(found, (squares / 2).sqrt())


@pytest.mark.parametrize("wrong", [{"rule": "adam"}, {"segment": 0}, {"rate": -1.0}, {"pull": 2.0}])
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        DynamicSettings(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(UserError, match="nan"):
        DynamicSettings(rate=float("nan"))
