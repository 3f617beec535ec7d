"""A run folder made by hand: a model, its configuration and its text, with no training."""

from pathlib import Path

import pytest

import rnnewton as rn
from rnnewton.lab.configuration import changed, to_document
from rnnewton.lab.run_folder import RunFolder
from rnnewton.lab.settings import Settings
from rnnewton.text.alphabet import Alphabet

TEXT = "The [[cat]] sat on the [[mat]]; it didn't purr. " * 20


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a run on `text.txt`, its model drawn at random."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    alphabet = Alphabet.of(TEXT)
    model = rn.RecurrentModel(
        cell="mlstm", hidden=(8,), inputs=len(alphabet), outputs=len(alphabet), init=rn.Normal(0.5)
    )
    model.alphabet = alphabet
    folder = tmp_path / "run"
    model.save(folder)
    settings = changed(Settings(), {"text": str(text), "split": "0.8/0.1/0.1"})
    RunFolder(folder).write_config(to_document(settings))
    return folder
