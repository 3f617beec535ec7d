"""Where texts come from: a file, or a corpus known by name.

The names are `builtin`, `penn:FOLDER`, `penn-char:FOLDER`, `enwik8[:FILE]` and `text8[:FILE]`.

A source is one text that the program splits, or two or three texts: training, validation and test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rnnewton.text.reading import Piece, unreadable


@dataclass(frozen=True)
class Source:
    """A text that was found and not yet read."""

    name: str
    parts: tuple[tuple[Piece, ...], ...]  # one, or training, validation[, test]; each a row of pieces
    split: str | None = None  # how a text of one part is cut unless told otherwise
    note: str = ""


# name -> module whose `source(path: Path | None) -> Source` finds it
_NAMED = {
    "builtin": "builtin",
    "penn": "penn",
    "penn-char": "penn",
    "enwik8": "wikipedia",
    "text8": "wikipedia",
}


def find(text: str) -> Source:
    """A path, a name, or name:path. A file called as a name says is that source's data."""
    name, colon, rest = text.partition(":")
    path = Path(text)
    if name not in _NAMED or (colon and _exists(path)):
        return from_path(path)
    if colon:
        return _loader(name)(name, Path(rest))
    return _loader(name)(name, path if name != "builtin" and _exists(path) else None)


def from_path(path: Path) -> Source:
    """A file as one text, or a folder in a layout of the Penn Treebank."""
    try:
        if not path.is_dir():
            if not path.exists():
                raise FileNotFoundError
            return Source(str(path), ((Piece(path),),))
        return import_module("rnnewton.text.sources.penn").folder(path)
    except (OSError, ValueError) as error:
        raise unreadable(str(path), error) from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _loader(name: str) -> Callable[[str, Path | None], Source]:
    return import_module(f"rnnewton.text.sources.{_NAMED[name]}").source
