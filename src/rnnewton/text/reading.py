"""A file as blocks of code points or byte values, so that no text needs to fit into memory."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rnnewton.text.alphabet import Codes, Kind
from rnnewton.text.errors import UserError

BLOCK = 1 << 22  # bytes


class Digest(Protocol):
    """What `hashlib` makes."""

    def update(self, data: bytes, /) -> None: ...


class NotUtf8(Exception):
    """The text is not UTF-8; `offset` is the first byte that is not."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"not UTF-8 at byte {offset}")
        self.offset = offset


@dataclass(frozen=True)
class Piece:
    """A stretch of text: a file, or bytes in memory; `spaced`: spaces only separate, and `_` is the space."""

    data: Path | bytes
    spaced: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Its bytes, after `spaced` is undone."""
        for block in self.raw_blocks():
            yield block.replace(b" ", b"").replace(b"_", b" ") if self.spaced else block

    def raw_blocks(self) -> Iterator[bytes]:
        """Its bytes as they are."""
        if isinstance(self.data, bytes):
            yield self.data
            return
        try:
            with self.data.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block
        except (OSError, ValueError) as error:
            raise unreadable(str(self.data), error) from error


def unreadable(name: str, error: Exception) -> UserError:
    """The user's error for a path that cannot be read."""
    shown = name if len(name) <= 200 else name[:200] + "…"
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"there is no file {shown!r}: give the path of a text, or no text for the built-in one"
        )
    if isinstance(error, IsADirectoryError):
        return UserError(f"{shown!r} is a directory: give the path of a text file")
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return UserError(f"{shown!r} cannot be read ({reason}): give the path of a readable text file")


def codes(blocks: Iterable[bytes], kind: Kind, errors: str = "strict") -> Iterator[Codes]:
    """Byte values, or code points; `errors="surrogateescape"` passes what is not UTF-8, one code a byte."""
    if kind == "bytes":
        for block in blocks:
            yield np.frombuffer(block, dtype=np.uint8)
        return
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    consumed = 0  # bytes given to the decoder so far
    for block in blocks:
        pending = len(decoder.getstate()[0])
        if not pending and block.isascii():  # the fast path: bytes are code points
            consumed += len(block)
            yield np.frombuffer(block, dtype=np.uint8)
            continue
        yield _points(decoder, block, consumed - pending)
        consumed += len(block)
    yield _points(decoder, b"", consumed - len(decoder.getstate()[0]), final=True)


def _points(decoder: codecs.IncrementalDecoder, block: bytes, start: int, final: bool = False) -> Codes:
    try:
        text = decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise NotUtf8(start + error.start) from error
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


@dataclass
class Count:
    """What one pass over some pieces of text saw."""

    bytes: int = 0  # as in the files
    characters: int = 0
    dropped: int = 0  # separators that `spaced` removed
    per_code: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, dtype=np.int64))

    def add(self, found: Codes) -> None:
        """Counts one block of codes."""
        counts = np.bincount(found)
        self.characters += len(found)
        if len(counts) > len(self.per_code):
            counts[: len(self.per_code)] += self.per_code
            self.per_code = counts
        else:
            self.per_code[: len(counts)] += counts

    def pairs(self) -> list[tuple[int, int]]:
        """(code, count) of the codes that occur."""
        present = np.flatnonzero(self.per_code)
        return list(zip(present.tolist(), self.per_code[present].tolist()))


def count(pieces: Iterable[Piece], kind: Kind, total: Count, digest: Digest) -> None:
    """Counts symbols and bytes of some pieces, one text, into `total`, and adds their bytes to `digest`."""

    def watched() -> Iterator[bytes]:
        for piece in pieces:
            for block in piece.raw_blocks():
                total.bytes += len(block)
                digest.update(block)
                if piece.spaced:
                    kept = block.replace(b" ", b"").replace(b"_", b" ")
                    total.dropped += len(block) - len(kept)
                    block = kept
                yield block

    for found in codes(watched(), kind):
        total.add(found)
