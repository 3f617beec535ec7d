"""`rnnewton sample`, from outside."""

import json
from pathlib import Path

import pytest

import rnnewton as rn
from rnnewton.cli import main
from rnnewton.lab.sampling import SamplingSettings, sample_text


def test_the_sample_is_the_librarys_and_is_kept(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "sample",
        str(finished),
        "--prompt",
        "The ",
        "--length",
        "30",
        "--seed",
        "4",
        "--temperature",
        "0.8",
    ]
    expected = sample_text(rn.load(finished), SamplingSettings("The ", 30, 0.8, 4))
    assert main(words) == 0
    assert capsys.readouterr().out == f"The {expected}\n"
    assert (finished / "samples" / "seed-4-temperature-0.8.txt").read_text() == "The " + expected
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == expected
    assert (document["prompt"], document["novel"]) == ("The ", None)


def test_novel_words_are_marked_and_listed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", str(finished), "--prompt", "The catsit didn't ", "--length", "0", "--novel"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out == "The «catsit» didn't \n"
    assert "catsit" in captured.err
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["novel"] == ["catsit"]


def test_only_restricts(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(finished), "--only", "at", "--length", "50"]) == 0
    assert set(capsys.readouterr().out.strip()) <= set("at")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--prompt", "é"], "does not know"),
        (["--only", ""], "empty"),
        (["--temperature", "-1"], "temperature"),
        (["--length", "-1"], "length"),
        (["--length", "x"], "length"),
    ],
)
def test_faults_end_with_2(
    finished: Path, capsys: pytest.CaptureFixture[str], extra: list[str], says: str
) -> None:
    assert main(["sample", str(finished), *extra]) == 2
    assert says in capsys.readouterr().err
