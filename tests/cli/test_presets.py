"""`rnnewton presets`: all names, and one in full."""

import json

import pytest

from rnnewton.cli import main


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    shown = capsys.readouterr().out
    assert "thesis/stacked-mrnn" in shown and "219,090" in shown and "1.90" in shown


def test_one_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "thesis/mlstm", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == 215_900 and document["thesis"]["test_bits"] == 1.82
    assert document["settings"]["optimizer"]["damping"].startswith("structural:0.1")


def test_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["presets"]) == 13


def test_one_in_full_is_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    assert main(["presets", "thesis/penn-large"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"]["hidden"] == [800]
