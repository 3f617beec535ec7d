"""`rnnewton evaluate`, from outside."""

import json
from pathlib import Path

import pytest

import rnnewton as rn
from rnnewton.cli import main
from rnnewton.lab.evaluation import evaluate

KEYS = {"bits_per_character", "characters", "bytes", "bits_per_byte", "unknown", "dynamic", "seconds"}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("The mat sat on the cat")
    return path


def test_json_is_one_object_with_the_contracts_keys(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(finished), str(other), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == KEYS
    expected = evaluate(rn.load(finished), other.read_text())
    assert document["bits_per_character"] == pytest.approx(expected.bits_per_character)
    assert (document["characters"], document["unknown"], document["dynamic"]) == (21, 0, False)


def test_dynamic_with_rate_zero_is_static_to_the_bit(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = []
    for extra in ([], ["--dynamic", "--rate", "0"], ["--dynamic", "--rate", "1"]):
        assert main(["evaluate", str(finished), str(other), "--json", *extra]) == 0
        scores.append(json.loads(capsys.readouterr().out))
    assert (
        scores[0]["bits_per_character"] == scores[1]["bits_per_character"] != scores[2]["bits_per_character"]
    )
    assert [score["dynamic"] for score in scores] == [False, True, True]


def test_without_a_text_the_runs_own_parts_are_scored(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["characters"] == 95
    assert (
        main(["evaluate", str(finished), "--part", "training", "--rule", "rms", "--dynamic", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["characters"] == 767


def test_unknown_symbols_are_counted_named_and_refused_when_strict(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other.write_bytes(b"The c\xc3\xa9t\xff")
    assert main(["evaluate", str(finished), str(other), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["unknown"] == 2
    assert "2 symbols" in captured.err
    assert "8 bits a byte" in captured.err
    assert main(["evaluate", str(finished), str(other), "--strict"]) == 2
    assert "U+00E9) at character 5" in capsys.readouterr().err


def test_surprise_files(
    finished: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("s.json", "s.html"):
        assert main(["evaluate", str(finished), str(other), "--surprise", str(tmp_path / name)]) == 0
    document = json.loads((tmp_path / "s.json").read_text())
    assert "".join(document["characters"]) == other.read_text()
    assert "<span" in (tmp_path / "s.html").read_text()
    capsys.readouterr()
    assert main(["evaluate", str(finished), str(other), "--surprise", "-"]) == 0
    assert "\x1b[38" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-run", "text"], "no run folder"),
        (["RUN", "no-such-text"], "no file"),
        (["RUN", "EMPTY"], "at least 2"),
        (["RUN", "OTHER", "--surprise", "s.txt"], "decides the format"),
        (["RUN", "OTHER", "--surprise", "-", "--json"], "standard output"),
        (["RUN", "OTHER", "--surprise", "/nowhere/s.html"], "cannot be written"),
        (["RUN", "OTHER", "--dynamic", "--rate", "-1"], "below 0"),
        (["RUN", "OTHER", "--device", "cuda:99"], "device"),
        (["TMP", "OTHER"], "no model can be loaded"),
    ],
)
def test_faults_end_with_2_and_one_sentence(
    finished: Path,
    other: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    (tmp_path / "empty").touch()
    places = {"RUN": finished, "OTHER": other, "EMPTY": tmp_path / "empty", "TMP": tmp_path}
    assert main(["evaluate", *(str(places.get(word, word)) for word in words)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_dynamic_falls_back_where_the_training_text_is_gone(
    finished: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished.parent / "text.txt").unlink()
    assert main(["evaluate", str(finished), str(other), "--dynamic", "--json"]) == 0
    captured = capsys.readouterr()
    assert "--rule sgd is taken" in captured.err
    assert json.loads(captured.out)["dynamic"] is True
    assert main(["evaluate", str(finished), str(other), "--dynamic", "--rule", "rms"]) == 2
