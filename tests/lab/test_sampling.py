"""Sampling: seeded, from the right distribution, and words that the training text lacks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rnnewton as rn
from rnnewton.lab.sampling import (
    SamplingSettings,
    allowed_ids,
    as_text,
    draw,
    known_words,
    marked,
    novel_words,
    sample,
    sample_text,
)
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.errors import UserError


def model_for(alphabet: Alphabet) -> rn.RecurrentModel:
    model = rn.RecurrentModel(
        cell="mlstm", hidden=(8,), inputs=len(alphabet), outputs=len(alphabet), init=rn.Normal(1.0)
    )
    model.alphabet = alphabet
    return model


MODEL = model_for(Alphabet.of("abc d\né"))


def test_a_seed_means_one_sample_of_the_asked_length() -> None:
    settings = SamplingSettings("ab", length=40, seed=5)
    first = list(sample(MODEL, settings))
    assert first == list(sample(MODEL, settings))
    assert len(first) == 40
    assert first != list(sample(MODEL, SamplingSettings("ab", length=40, seed=6)))
    assert first != list(sample(MODEL, SamplingSettings("cc", length=40, seed=5)))
    assert len(sample_text(MODEL, settings)) == 40


def test_temperature_zero_takes_the_likeliest_symbol_each_time() -> None:
    found = list(sample(MODEL, SamplingSettings("ab", length=10, temperature=0.0)))
    ids = MODEL.alphabet.encode("ab").tolist()
    for each in found:
        logits, _ = MODEL(torch.tensor(ids)[:, None])
        assert int(logits[-1, 0].argmax()) == each
        ids.append(each)
    cold = list(sample(MODEL, SamplingSettings("ab", length=10, temperature=1e-300)))
    assert cold == found


def test_the_frequencies_are_the_models_own_and_renormalised_by_only() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(40_000, -1)
    generator = torch.Generator().manual_seed(0)
    every = torch.ones(4, dtype=torch.bool)
    found = torch.bincount(draw(logits, every, 1.0, generator), minlength=4) / len(logits)
    torch.testing.assert_close(found, torch.softmax(logits[0], -1), atol=0.01, rtol=0)
    some = torch.tensor([True, False, True, False])
    found = torch.bincount(draw(logits, some, 0.5, generator), minlength=4) / len(logits)
    torch.testing.assert_close(
        found, torch.softmax(torch.tensor([0.0, -torch.inf, 4.0, -torch.inf]), -1), atol=0.01, rtol=0
    )


@given(st.floats(0, 1e6), st.integers(0, 50))
def test_only_what_is_allowed_is_written(temperature: float, seed: int) -> None:
    text = sample_text(MODEL, SamplingSettings("ab", 12, temperature, seed, only="cé"))
    assert set(text) <= set("cé")


def test_the_unknown_symbol_is_never_written() -> None:
    alphabet = Alphabet.of("aaaabbbbcd", limit=3)
    ids = list(sample(model_for(alphabet), SamplingSettings("zzz", length=50)))
    assert alphabet.unknown not in ids
    with pytest.raises(UserError, match="does not know"):
        allowed_ids(alphabet, "az")


def test_without_a_prompt_a_new_line_comes_before() -> None:
    assert sample_text(MODEL, SamplingSettings(length=9)) == sample_text(
        MODEL, SamplingSettings("\n", length=9)
    )


def test_a_prompt_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample_text(MODEL, SamplingSettings("abc d" * 5, length=9))
    monkeypatch.setattr("rnnewton.lab.sampling._BLOCK", 4)
    assert sample_text(MODEL, SamplingSettings("abc d" * 5, length=9)) == whole


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"length": -1}, "length"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"only": ""}, "empty"),
        ({"only": "x"}, "does not know"),
        ({"prompt": "x"}, "does not know"),
    ],
)
def test_requests_that_make_no_sense(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        sample(MODEL, SamplingSettings(**settings))  # pyright: ignore[reportArgumentType]


def test_bytes_come_out_as_utf8() -> None:
    alphabet = Alphabet.of("né€".encode())
    assert "".join(as_text(alphabet.encode("né€".encode()).tolist(), alphabet)) == "né€"
    cut = alphabet.encode("n€".encode()[:-1]).tolist()
    assert "".join(as_text(cut, alphabet)) == "n\N{REPLACEMENT CHARACTER}"


@given(st.lists(st.integers(1, 6), min_size=1), st.integers(1, 6))
def test_words_are_found_wherever_the_text_is_cut(cuts: list[int], size: int) -> None:
    text = "it wasn't the dog's day; café au lait, 3x no_go 'quoted' end"
    alphabet = Alphabet.of(text)
    blocks = [alphabet.codes_of(text[i : i + size]) for i in range(0, len(text), size)]
    known = known_words(blocks, alphabet)
    assert known == {
        "it",
        "wasn't",
        "the",
        "dog's",
        "day",
        "café",
        "au",
        "lait",
        "x",
        "no",
        "go",
        "quoted",
        "end",
    }
    pieces, rest = [], text + " corporators wasn't"
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces.append(rest)
    assert "".join(marked(pieces, known, "<", ">")) == text + " <corporators> wasn't"
    assert novel_words(text + " corporators it corporators", known) == ["corporators"]
