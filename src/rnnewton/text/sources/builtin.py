"""The text that Python itself carries: the topics of its language reference, as `help()` prints them.

It is on every machine and needs no download. It differs by Python version (79 topics in 3.11), so the
version is part of its name. Paragraphs that several topics share are kept once; the split is by topics, so
that nothing held out is written in the training text.
"""

import platform
import zlib
from pathlib import Path

from rnnewton.text.errors import UserError
from rnnewton.text.reading import Piece
from rnnewton.text.sources import Source

_HELD_OUT = 0.05  # of the characters, for validation and for test each
_SHORT = 400  # topics with less text than this stay in training


def topics() -> dict[str, str]:
    """Topic -> text, without paragraphs that an earlier topic already has."""
    try:
        from pydoc_data.topics import topics as all_topics
    except ImportError as error:
        raise UserError(
            "this Python comes without pydoc_data, the built-in text: give a text file"
        ) from error
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name in sorted(all_topics):
        fresh: list[str] = []
        for paragraph in all_topics[name].split("\n\n"):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                fresh.append(paragraph.strip("\n"))
        if fresh:
            kept[name] = "\n\n".join(fresh) + "\n\n"
    return kept


def split(texts: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Names of the topics for training, validation and test, chosen by a checksum of the name."""
    target = _HELD_OUT * sum(map(len, texts.values()))
    eligible = [name for name in texts if _SHORT <= len(texts[name]) <= target]
    order = sorted(eligible, key=lambda name: zlib.crc32(name.encode()))
    held_out: tuple[list[str], list[str]] = ([], [])
    for part in held_out:
        size = 0
        while order and size < target:
            name = order.pop()
            part.append(name)
            size += len(texts[name])
    taken = {name for part in held_out for name in part}
    return [name for name in texts if name not in taken], sorted(held_out[0]), sorted(held_out[1])


def source(name: str, path: Path | None) -> Source:
    """The built-in text as training, validation and test."""
    if path is not None:
        raise UserError(f"{name}:{path}: the built-in text has no path; give the file alone")
    texts = topics()
    parts = tuple((Piece("".join(texts[topic] for topic in part).encode()),) for part in split(texts))
    version = ".".join(platform.python_version_tuple()[:2])
    note = f"what help() of Python {version} prints on its topics, each paragraph once, split by topics"
    return Source(f"builtin (Python {version})", parts, note=note)
