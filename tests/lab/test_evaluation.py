"""Scores against a slow character-by-character reference, on every cell."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rnnewton as rn
from rnnewton.lab import evaluation
from rnnewton.lab.evaluation import (
    Reader,
    Total,
    blocks_of,
    evaluate,
    refuse_unknown,
    stretches,
    unknown_line,
)
from rnnewton.lab.surprise import as_ansi, as_html, as_json
from rnnewton.text.alphabet import Alphabet
from rnnewton.text.errors import UserError

TEXT = "the cat sat on the mat; the dog did not. " * 7


def model_for(alphabet: Alphabet, cell: str = "mlstm", hidden: tuple[int, ...] = (9,)) -> rn.RecurrentModel:
    model = rn.RecurrentModel(
        cell=cell, hidden=hidden, inputs=len(alphabet), outputs=len(alphabet), init=rn.Normal(0.7), seed=3
    )
    model.alphabet = alphabet
    return model


def slow_bits(model: rn.RecurrentModel, text: str) -> list[float]:
    """Character by character, in the slow reference loop and float64."""
    exact = rn.RecurrentModel(
        cell=model.architecture.cell,
        hidden=model.hidden,
        inputs=model.architecture.inputs,
        outputs=model.architecture.outputs,
    ).double()
    exact.load_state_dict(model.state_dict())
    ids, state, bits = model.alphabet.encode(text).tolist(), None, []
    for now, following in itertools.pairwise(ids):
        logits, states = exact.reference(torch.tensor([[now]]), state)
        state = states[-1]
        bits.append(-torch.log_softmax(logits[0, 0], -1)[following].item() / np.log(2))
    return bits


@pytest.mark.parametrize("cell", ["rnn", "lstm", "lstm-original", "mrnn", "mlstm"])
def test_it_equals_the_slow_reference(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BLOCK", 17)
    model = model_for(Alphabet.of(TEXT), cell, (7, 5))
    expected = slow_bits(model, TEXT)
    found = evaluate(model, TEXT)
    assert found.bits_per_character == pytest.approx(np.mean(expected), abs=1e-5)
    assert found.characters == len(TEXT) - 1 == found.bytes
    assert (found.unknown, found.dynamic) == (0, False)
    each = [
        bits
        for part in stretches(Reader(model), model.alphabet, blocks_of(TEXT, model.alphabet))
        for bits in part.bits
    ]
    np.testing.assert_allclose(each[1:], expected, atol=1e-4)


def test_halves_with_carried_state_are_the_whole() -> None:
    model = model_for(Alphabet.of(TEXT)).double()
    ids = model.alphabet.encode(TEXT).numpy()
    whole = Reader(model).read(ids)
    reader = Reader(model)
    for cuts in ((0, 100, len(ids)), (0, 1, 2, len(ids))):
        reader = Reader(model)
        parts = [reader.read(ids[a:b]) for a, b in itertools.pairwise(cuts)]
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-12)
    fresh = np.concatenate([Reader(model).read(ids[:100]), Reader(model).read(ids[100:])])
    assert np.abs(fresh - whole).max() > 1e-3


def test_str_bytes_and_file_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT + "é€"
    model = model_for(Alphabet.of(text))
    path = tmp_path / "text"
    path.write_text(text)
    monkeypatch.setattr("rnnewton.text.reading.BLOCK", 13)
    scores = [evaluate(model, each) for each in (text, text.encode(), path)]
    assert len({round(score.bits_per_character, 5) for score in scores}) == 1
    assert {score.bytes for score in scores} == {len(text.encode()) - 1}
    assert scores[0].bits_per_byte * scores[0].bytes == pytest.approx(
        scores[0].bits_per_character * scores[0].characters
    )


def test_unknown_symbols_without_an_unknown_symbol() -> None:
    alphabet = Alphabet.of("abc")
    model = model_for(alphabet)
    known = evaluate(model, "abcabc")
    found = evaluate(model, "abé€cabc\udcff")
    extra = 3 * np.log2(3) + 8 * (2 + 3 + 1)
    assert found.unknown == 3
    assert found.bits_per_character * found.characters == pytest.approx(
        known.bits_per_character * 5 + extra, abs=1e-4
    )
    assert "1/3" in str(unknown_line(found, alphabet))
    assert unknown_line(known, alphabet) is None


def test_unknown_symbols_are_named_once_each() -> None:
    alphabet = Alphabet.of("abc")
    total = Total()
    for stretch in stretches(Reader(model_for(alphabet)), alphabet, blocks_of("abxzcxx", alphabet)):
        total.add(stretch)
    line = str(unknown_line(total.evaluation(0.0, False), alphabet, total.strangers))
    assert "4 symbols" in line and line.count("'x'") == line.count("'z'") == 1 and "others" not in line
    assert "and 12 others" in str(unknown_line(total.evaluation(0.0, False), alphabet, range(200, 220)))


def test_unknown_symbols_with_an_unknown_symbol_cost_its_own_bits_more() -> None:
    alphabet = Alphabet.of("aaabbbcd", limit=3)
    model = model_for(alphabet)
    found = evaluate(model, "abéab")
    assert found.unknown == 1
    assert found.bits_per_character * 4 == pytest.approx(sum(slow_bits(model, "abéab")) + 16, abs=1e-4)
    assert "own cost" in str(unknown_line(found, alphabet))


def test_a_text_that_begins_with_unknown_symbols() -> None:
    model = model_for(Alphabet.of("abcd"))
    found = evaluate(model, "éab")
    rest = evaluate(model, "ab")
    assert found.bits_per_character * 2 == pytest.approx(np.log2(4) + rest.bits_per_character, abs=1e-5)
    assert evaluate(model, "éé").bits_per_character == pytest.approx(np.log2(4) + 16)


def test_what_is_too_short_or_not_a_text_model() -> None:
    model = model_for(Alphabet.of("ab"))
    for text in ("", "a", b""):
        with pytest.raises(UserError, match="at least 2"):
            evaluate(model, text)
    assert evaluate(model, "ab").characters == 1
    real = rn.RecurrentModel(cell="rnn", hidden=(3,), inputs=rn.Real(2), outputs=rn.Real(1), loss="squared")
    with pytest.raises(UserError, match="no alphabet"):
        evaluate(real, "ab")


def test_strict_names_the_first_unknown_symbol() -> None:
    alphabet = Alphabet.of("abc")
    refuse_unknown(iter([alphabet.codes_of("abc")]), alphabet)
    with pytest.raises(UserError, match=r"U\+00E9\) at character 4"):
        refuse_unknown(iter([alphabet.codes_of("abc"), alphabet.codes_of("aéé")]), alphabet)


def test_surprise_as_json_ansi_and_html() -> None:
    model = model_for(Alphabet.of("ab<\n"))

    def parts() -> list[evaluation.Stretch]:
        return list(stretches(Reader(model), model.alphabet, blocks_of("ab<é\na", model.alphabet)))

    document = json.loads("".join(as_json(parts(), "utf8")))
    assert document["characters"] == list("ab<é\na")
    assert document["bits"][0] is None
    assert document["unknown"] == [3]
    total = sum(bits for bits in document["bits"] if bits is not None)
    assert total == pytest.approx(evaluate(model, "ab<é\na").bits_per_character * 5, abs=1e-3)
    page = "".join(as_html(parts(), "utf8", "a <b>"))
    assert "&lt;" in page
    assert "a &lt;b&gt;" in page
    assert page.count("<span") == page.count("</span") > 0
    coloured = "".join(as_ansi(parts(), "utf8"))
    assert coloured.count("\x1b[38") == coloured.count("\x1b[0m") > 0
    assert "\x1b[0m\n" in coloured  # colours end before the line does


def test_a_text_cannot_reach_the_terminal_with_control_characters() -> None:
    alphabet = Alphabet.of("a\x1b")
    model = model_for(alphabet)
    shown = "".join(as_ansi(stretches(Reader(model), alphabet, blocks_of("aa\x1b[2Ja", alphabet)), "utf8"))
    assert "\x1b[2J" not in shown
    assert "\\x1b" in shown
