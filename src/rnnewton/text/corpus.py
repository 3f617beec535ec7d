"""A text as ids: read, counted, given an alphabet, split; in memory if small, memory-mapped if large.

Nothing is dropped unless asked; `Corpus.account` is the line that says so, in numbers.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rnnewton.text import reading, split
from rnnewton.text.alphabet import Alphabet, Ids, Kind, build
from rnnewton.text.errors import UserError
from rnnewton.text.reading import Count, NotUtf8, Piece
from rnnewton.text.sources import Source, find

IN_MEMORY = 1 << 26  # ids beyond this many bytes are memory-mapped
READS = ("auto", "utf8", "bytes")
_IDS, _META = "ids.npy", "ids.json"


@dataclass(frozen=True)
class CorpusSettings:
    """How a text is read. Everything that decides which ids come out."""

    text: str = "builtin"  # a file, or the name of a source, or name:path
    read: str = "auto"  # auto, utf8, bytes
    alphabet: int | None = None  # N: the N - 1 most frequent symbols and one unknown symbol
    merge: str = ""  # symbols that all become the first of them
    split: str | None = None  # None: the source's own, else 0.9/0.05/0.05 with 5,000,000 at most held out


@dataclass(frozen=True)
class Account:
    """Every byte accounted for."""

    bytes: int
    characters: int
    kind: Kind
    symbols: int
    unknown: int  # characters that became the unknown symbol, as --alphabet asks
    merged: int  # characters that became another symbol, as --merge asks
    dropped: int  # separators of a text that has spaces between its symbols
    unused: int  # characters that the split leaves out
    lengths: tuple[int, int, int]
    note: str = ""

    def line(self) -> str:
        """One line for a person."""
        unit = "characters" if self.kind == "utf8" else "bytes, each one a character,"
        parts = [f"{self.bytes:,} bytes: {self.characters:,} {unit} of {self.symbols} symbols"]
        parts.append(f"{' / '.join(f'{n:,}' for n in self.lengths)} for training / validation / test")
        lost = [
            (self.unknown, "became the unknown symbol, as --alphabet asks"),
            (self.merged, "merged into another symbol, as --merge asks"),
            (self.dropped, "bytes that only separate characters dropped"),
            (self.unused, "left out by the split"),
        ]
        parts += [f"{number:,} {what}" for number, what in lost if number]
        if not self.dropped and not self.unused:
            parts.append("nothing dropped")
        return "; ".join(parts) + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Corpus:
    """Ids of training, validation and test text (views on one array), and where they come from."""

    name: str
    alphabet: Alphabet
    training: Ids
    validation: Ids
    test: Ids
    account: Account
    digest: str  # of the bytes of the text: another text has another one

    def line(self) -> str:
        """Says what was read, in one line."""
        return f"{self.name}: {self.account.line()}"


@dataclass(frozen=True)
class _Counted:
    """What the first pass over a text finds."""

    kind: Kind
    total: Count
    characters: list[int]  # of each part
    digest: str
    note: str


def read_corpus(
    settings: CorpusSettings, folder: Path | None = None, alphabet: Alphabet | None = None
) -> Corpus:
    """Reads a text twice, in blocks: once to count its symbols, once to write their ids.

    A large text's ids are written to `folder` and found there again by the next call, or to a temporary file.
    With `alphabet`, ids are made with it and not with the text's own.
    """
    if settings.read not in READS:
        raise UserError(f"--read {settings.read!r}: choose one of {', '.join(READS)}")
    source = find(settings.text)
    parts, cut = _parts(source, settings)
    counted = _count(parts, alphabet.kind if alphabet else settings.read)
    total = counted.total
    if total.characters == 0:
        raise UserError(f"{source.name} is empty: give a text of at least 2 characters")
    if alphabet is None:
        pairs = total.pairs()
        if len(pairs) < 2:
            raise UserError(
                f"{source.name} has only one symbol, {total.characters:,} times: give a text in which"
                " there is something to predict"
            )
        alphabet = build(counted.kind, pairs, settings.alphabet, settings.merge)
    if len(parts) == 1:
        lengths = split.lengths(cut, total.characters)
    else:
        lengths = _part_lengths(source.name, counted.characters)
    ids = _ids(parts, counted, alphabet, folder)
    ends = np.cumsum(lengths)
    account = _account(counted, alphabet, (lengths[0], lengths[1], lengths[2]), source.note)
    return Corpus(
        name=source.name,
        alphabet=alphabet,
        training=ids[: ends[0]],
        validation=ids[ends[0] : ends[1]],
        test=ids[ends[1] : ends[2]],
        account=account,
        digest=counted.digest,
    )


def encode_file(text: str, alphabet: Alphabet) -> Iterator[np.ndarray]:
    """The codes of a whole text, block by block; a byte that is not UTF-8 is passed on as one unknown
    code."""
    for part in find(text).parts:
        yield from reading.codes(_bytes_of(part), alphabet.kind, errors="surrogateescape")


def _bytes_of(pieces: Iterable[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        yield from piece.blocks()


def _parts(source: Source, settings: CorpusSettings) -> tuple[list[tuple[Piece, ...]], split.Split]:
    """The parts that the source or the split by files has, or one part and how to cut it."""
    parts = list(source.parts)
    if settings.split is None and len(parts) > 1:
        return parts, split.Split()
    asked = settings.split if settings.split is not None else source.split
    cut = split.default() if asked is None else split.parse(asked)
    if cut.files:
        whole = tuple(piece for part in parts for piece in part)
        return [whole, *((Piece(name),) for name in cut.files)], cut
    return [tuple(piece for part in parts for piece in part)], cut


def _part_lengths(name: str, characters: list[int]) -> list[int]:
    if len(characters) > 3:
        raise UserError(f"--split names {len(characters) - 1} files: give two at most, VALIDATION,TEST")
    for role, length in zip(("training", "validation", "test"), characters):
        if length < 2:
            raise UserError(f"the {role} text of {name} has {length} characters: at least 2 are needed")
    return [*characters, 0, 0][:3]


def _count(parts: list[tuple[Piece, ...]], read: str) -> _Counted:
    """The first pass; `auto` takes UTF-8 where all of the text is UTF-8, else bytes."""
    if read != "bytes":
        try:
            return _count_as(parts, "utf8", "")
        except NotUtf8 as error:
            if read == "utf8":
                raise UserError(
                    f"the text is not UTF-8: byte {error.offset} (counted from 0) cannot be decoded; use"
                    " --read bytes, or --read auto"
                ) from error
            return _count_as(parts, "bytes", f"read as bytes: not UTF-8 at byte {error.offset}")
    return _count_as(parts, "bytes", "")


def _count_as(parts: list[tuple[Piece, ...]], kind: Kind, note: str) -> _Counted:
    total = Count()
    digest = hashlib.blake2b(digest_size=16)
    characters: list[int] = []
    for part in parts:
        before = total.characters
        reading.count(part, kind, total, digest)
        characters.append(total.characters - before)
        digest.update(f"|{characters[-1]}".encode())
    return _Counted(kind, total, characters, digest.hexdigest(), note)


def _account(counted: _Counted, alphabet: Alphabet, lengths: tuple[int, int, int], note: str) -> Account:
    pairs = counted.total.pairs()
    codes = np.array([code for code, _ in pairs], dtype=np.uint32)
    numbers = np.array([number for _, number in pairs], dtype=np.int64)
    characters = counted.total.characters
    merged = {merge.code for merge in alphabet.merges}
    return Account(
        bytes=counted.total.bytes,
        characters=characters,
        kind=counted.kind,
        symbols=len(alphabet),
        unknown=int(numbers[alphabet.unknown_among(codes)].sum()),
        merged=sum(number for code, number in pairs if code in merged),
        dropped=counted.total.dropped,
        unused=characters - sum(lengths),
        lengths=lengths,
        note="; ".join(each for each in (note, counted.note) if each),
    )


def _ids(parts: list[tuple[Piece, ...]], counted: _Counted, alphabet: Alphabet, folder: Path | None) -> Ids:
    """The second pass: symbols to ids, into memory or into a mapped file."""
    smallest = np.min_scalar_type(len(alphabet) - 1)
    dtype = smallest if smallest.itemsize <= 2 else np.dtype(np.int32)
    shape = (counted.total.characters,)
    size = shape[0] * dtype.itemsize
    meta = {"digest": counted.digest, "alphabet": alphabet.to_dict(), "characters": shape[0]}
    if size > IN_MEMORY and folder is not None:
        found = _found(folder, meta)
        if found is not None:
            return found
    ids = _place(shape, dtype, size, folder)
    start = 0
    for part in parts:
        for codes in reading.codes(_bytes_of(part), counted.kind):
            block = alphabet.ids_of(codes)
            if alphabet.unknown is None and len(block) and block.min() < 0:
                alphabet.encode(alphabet_text(alphabet.kind, codes))  # raises, naming the symbol
            ids[start : start + len(block)] = block
            start += len(block)
    if start != shape[0]:
        raise UserError("the text changed while it was read: try again")
    if isinstance(ids, np.memmap) and folder is not None:
        ids.flush()
        (folder / _META).write_text(json.dumps(meta))
    return ids


def alphabet_text(kind: Kind, codes: np.ndarray) -> str | bytes:
    """Codes back to a text."""
    if kind == "bytes":
        return codes.astype(np.uint8).tobytes()
    return codes.astype(np.uint32).tobytes().decode("utf-32-le", "surrogatepass")


def _place(shape: tuple[int], dtype: np.dtype[Any], size: int, folder: Path | None) -> Ids:
    if size <= IN_MEMORY:
        return np.empty(shape, dtype)
    if folder is None:
        # Unnamed: the system frees it with the last reference.
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _META).unlink(missing_ok=True)
    return np.lib.format.open_memmap(folder / _IDS, mode="w+", dtype=dtype, shape=shape)


def _found(folder: Path, meta: dict[str, Any]) -> Ids | None:
    """Ids that an earlier call wrote for the same text and alphabet."""
    try:
        if json.loads((folder / _META).read_text()) != meta:
            return None
        ids = np.load(folder / _IDS, mmap_mode="r")
    except (OSError, ValueError):
        return None
    return ids if ids.shape == (meta["characters"],) else None
