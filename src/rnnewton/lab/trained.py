"""What commands need of a run or model folder that exists: its model, and the text that it was trained on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rnnewton.lab.building import device_of
from rnnewton.lab.configuration import changed, from_document
from rnnewton.lab.run_folder import RunFolder
from rnnewton.lab.settings import Settings
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.recurrent.saving import SavedModelError, load
from rnnewton.text.alphabet import Alphabet, Codes, Ids
from rnnewton.text.corpus import Corpus, CorpusSettings, read_corpus
from rnnewton.text.errors import UserError

_BLOCK = 1 << 20


def trained_model(folder: str, which: str = "best", device: str = "cpu") -> RecurrentModel:
    """The model of a run folder, or of a folder that `model.save` wrote."""
    path = Path(folder)
    where = device_of(device)
    if not path.is_dir():
        raise UserError(f"there is no run folder {folder!r}: give the folder that `rnnewton train` made")
    try:
        return load(path, which).to(where)
    except (SavedModelError, OSError) as error:
        raise UserError(f"no model can be loaded from {folder!r}: {error}") from error


def own_corpus(folder: str, alphabet: Alphabet) -> Corpus:
    """The text that a run was trained on, read again, with the model's alphabet."""
    run = RunFolder(Path(folder))
    if not run.exists():
        raise UserError(
            f"{folder!r} is a model without its run, so that its text is not known: give a run folder"
        )
    text = changed(Settings(), from_document(run.read_config(), str(run.path / "config.toml"))).text
    settings = CorpusSettings(text.text or "builtin", text.read, text.alphabet, text.merge or "", text.split)
    return read_corpus(settings, alphabet=alphabet)


def codes_of_ids(ids: Ids, alphabet: Alphabet) -> Iterator[Codes]:
    """Ids back to codes, in blocks; the unknown symbol becomes U+FFFD or the byte 1A."""
    unknown = [] if alphabet.unknown is None else [0x1A if alphabet.kind == "bytes" else 0xFFFD]
    table = np.array([*alphabet.codes, *unknown], dtype=np.uint32)
    for start in range(0, len(ids), _BLOCK):
        yield table[np.asarray(ids[start : start + _BLOCK], dtype=np.int64)]
