"""The Penn Treebank, raw or preprocessed.

Raw (the thesis's): a folder with the sections 00 to 24 of the Wall Street Journal as folders, whose files
begin with `.START`, which is kept; 00-20 are for training, 21-22 for validation, 23-24 for test.
Preprocessed: `ptb.train.txt`, `ptb.valid.txt`, `ptb.test.txt` (with or without `ptb.` or `ptb.char.`),
either as words or as characters with spaces between them and `_` for the space.
"""

from pathlib import Path

from rnnewton.text.errors import UserError
from rnnewton.text.reading import Piece
from rnnewton.text.sources import Source

_SECTIONS = (range(21), range(21, 23), range(23, 25))
_PREFIXES = ("ptb.char.", "ptb.", "")
_LOOK = 4096  # characters that decide whether spaces are separators


def source(name: str, path: Path | None) -> Source:
    """`penn:FOLDER` or `penn-char:FOLDER`."""
    if path is None:
        raise UserError(f"{name} cannot be downloaded, as it is licensed: give its folder, {name}:FOLDER")
    if not path.is_dir():
        raise UserError(f"{name}:{path}: there is no such folder")
    return folder(path)


def folder(path: Path) -> Source:
    """A folder in either layout."""
    found = next(filter(None, map(_raw, (path, path / "wsj", path / "raw" / "wsj"))), None) or _preprocessed(
        path
    )
    if found is None:
        raise UserError(
            f"{str(path)!r} is a directory: give a text file, or a folder with the sections 00 to 24 of"
            " the Penn"
            " Treebank, or with train.txt, valid.txt and test.txt"
        )
    return found


def _raw(path: Path) -> Source | None:
    if not path.is_dir():
        return None
    sections = {each.name: each for each in path.iterdir() if each.is_dir() and each.name in _NAMES}
    if not sections:
        return None
    parts: list[tuple[Piece, ...]] = []
    for numbers in _SECTIONS:
        missing = [f"{n:02d}" for n in numbers if f"{n:02d}" not in sections]
        if missing:
            raise UserError(
                f"{str(path)!r} has no section {missing[0]} of the Penn Treebank: 00 to 24 are expected"
            )
        files = [file for n in numbers for file in sorted(sections[f"{n:02d}"].iterdir()) if file.is_file()]
        parts.append(tuple(Piece(file) for file in files if not file.name.startswith((".", "readme"))))
    return Source(f"Penn Treebank, raw ({path.name})", tuple(parts))


_NAMES = frozenset(f"{n:02d}" for n in range(25))


def _preprocessed(path: Path) -> Source | None:
    for prefix in _PREFIXES:
        files = [path / f"{prefix}{part}.txt" for part in ("train", "valid", "test")]
        if not (files[0].is_file() and files[1].is_file()):
            continue
        spaced = _spaced(files[0])
        present = [file for file in files if file.is_file()]
        note = "" if len(present) == 3 else f"{files[2].name} is missing: no test text"
        return Source(path.name or str(path), tuple((Piece(file, spaced),) for file in present), note=note)
    return None


def _spaced(file: Path) -> bool:
    """Whether every symbol of the beginning stands between spaces."""
    with file.open("rb") as opened:
        words = opened.read(_LOOK).split()[:-1]
    return len(words) > 1 and all(len(word) == 1 for word in words)
