"""The symbols that a model knows, and the way from text to ids and back.

A symbol is a character (kind "utf8") or a byte (kind "bytes"); `codes` are code points or byte values. The
ids are 0 .. V-1 in the order of the codes; the unknown symbol, if there is one, is the last. Several symbols
may be merged into one (the thesis's accident with T, U and V, here only on purpose): they share an id and
decode to the first of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnewton.text.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["utf8", "bytes"]
Codes = NDArray[np.unsignedinteger[Any]]
Ids = NDArray[np.integer[Any]]

UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
UNKNOWN_BYTE = b"\x1a"  # ASCII's "substitute"
_SURROGATES = (0xDC80, 0xDCFF)  # how Python writes a byte that is not UTF-8 (surrogateescape)


class Merge(NamedTuple):
    """One symbol that shares the id of another, and how often the text had it."""

    code: int
    into: int
    times: int


@dataclass(frozen=True)
class Alphabet:
    """A finite set of symbols. Immutable; compared by value; stored with the model as JSON by `to_dict`."""

    kind: Kind
    codes: tuple[int, ...]  # without the unknown symbol
    unknown: int | None = None  # its id, len(codes), if there is one
    merges: tuple[Merge, ...] = ()

    def __len__(self) -> int:
        return len(self.codes) + (self.unknown is not None)

    @cached_property
    def symbols(self) -> tuple[str, ...] | tuple[bytes, ...]:
        """One character, or one byte, per id; U+FFFD, or the byte 1A, stands for the unknown symbol."""
        if self.kind == "bytes":
            known = tuple(bytes((code,)) for code in self.codes)
            return known if self.unknown is None else (*known, UNKNOWN_BYTE)
        characters = tuple(chr(code) for code in self.codes)
        return characters if self.unknown is None else (*characters, UNKNOWN_CHARACTER)

    @cached_property
    def table(self) -> Ids:
        """Code -> id, up to one code past the largest known; -1 for a symbol without an id."""
        largest = max((*self.codes, *(merge.code for merge in self.merges)), default=0)
        missing = -1 if self.unknown is None else self.unknown
        table = np.full(largest + 2, missing, dtype=np.int32)
        table[np.array(self.codes, dtype=np.int64)] = np.arange(len(self.codes), dtype=np.int32)
        for merge in self.merges:
            table[merge.code] = table[merge.into]
        return table

    def ids_of(self, codes: Codes) -> NDArray[np.int32]:
        """Ids of code points or byte values; -1 where a symbol is unknown and there is no unknown symbol."""
        return self.table.astype(np.int32, copy=False).take(codes, mode="clip")

    def unknown_among(self, codes: Codes) -> NDArray[np.bool_]:
        """Where the symbols are that the alphabet does not know."""
        ids = self.ids_of(codes)
        return ids < 0 if self.unknown is None else ids == self.unknown

    def codes_of(self, text: str | bytes) -> Codes:
        """Code points or byte values of a text; a byte that is not UTF-8 becomes a lone surrogate, always
        unknown."""
        if self.kind == "bytes":
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            return np.frombuffer(raw, dtype=np.uint8)
        characters = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
        return np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)

    def encode(self, text: str | bytes) -> "Tensor":
        """A 1-D int64 tensor of ids. Where there is no unknown symbol, an unknown one is the user's error."""
        import torch

        codes = self.codes_of(text)
        ids = self.ids_of(codes)
        missing = np.flatnonzero(ids < 0)
        if len(missing):
            raise UserError(
                f"the text has {self.show(int(codes[missing[0]]))} at position {int(missing[0])}, which the"
                f" model's alphabet of {len(self)} symbols does not know: leave it out, or train with"
                " --alphabet N, which keeps an unknown symbol"
            )
        return torch.from_numpy(ids.astype(np.int64))

    def decode(self, ids: "Tensor | Sequence[int] | Ids") -> str | bytes:
        """The text of some ids: a str for kind "utf8", bytes for kind "bytes"."""
        listed = ids.tolist() if hasattr(ids, "tolist") else ids  # pyright: ignore[reportAttributeAccessIssue]
        symbols: tuple[Any, ...] = self.symbols
        return (b"" if self.kind == "bytes" else "").join(symbols[int(i)] for i in listed)

    def show(self, code: int) -> str:
        """A symbol as a person reads it in a message."""
        if self.kind == "bytes":
            return f"the byte 0x{code:02x}"
        if _SURROGATES[0] <= code <= _SURROGATES[1]:
            return f"the byte 0x{code - 0xDC00:02x}, which is not UTF-8,"
        return f"the symbol {chr(code)!r} (U+{code:04X})"

    def bytes_of(self, codes: Codes) -> NDArray[np.int64]:
        """How many bytes of the file each symbol is."""
        if self.kind == "bytes":
            return np.ones(len(codes), dtype=np.int64)
        lengths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        lengths[(codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1])] = 1
        return lengths

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "kind": self.kind,
            "codes": list(self.codes),
            "unknown": self.unknown,
            "merges": [list(merge) for merge in self.merges],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Alphabet":
        """The inverse of `to_dict`."""
        kind = values["kind"]
        if kind not in ("utf8", "bytes"):
            raise ValueError(f"an alphabet's kind is 'utf8' or 'bytes', not {kind!r}")
        unknown = values.get("unknown")
        merges = tuple(Merge(*map(int, merge)) for merge in values.get("merges", ()))
        codes = tuple(int(code) for code in values["codes"])
        return cls(kind, codes, None if unknown is None else int(unknown), merges)

    @classmethod
    def of(cls, text: str | bytes, limit: int | None = None, merge: str = "") -> "Alphabet":
        """The alphabet of a text in memory: characters of a str, bytes of bytes."""
        kind: Kind = "utf8" if isinstance(text, str) else "bytes"
        codes, counts = np.unique(cls(kind, ()).codes_of(text), return_counts=True)
        return build(kind, zip(codes.tolist(), counts.tolist()), limit, merge)


def build(
    kind: Kind, counted: Iterable[tuple[int, int]], limit: int | None = None, merge: str = ""
) -> Alphabet:
    """The alphabet of a text whose symbols are counted as (code, count).

    `limit` = N keeps the N - 1 most frequent symbols (of equals, the smaller code) and one unknown symbol.
    `merge` names symbols that all become the first of them.
    """
    counts = dict(counted)
    merges = _merge(kind, counts, merge)
    if limit is None:
        return Alphabet(kind, tuple(sorted(counts)), None, merges)
    if limit < 2:
        raise UserError(
            f"--alphabet {limit}: an alphabet has at least 2 symbols, one of them the unknown one"
        )
    kept = sorted(sorted(counts), key=lambda code: -counts[code])[: limit - 1]
    merges = tuple(each for each in merges if each.into in kept)
    return Alphabet(kind, tuple(sorted(kept)), len(kept), merges)


def _merge(kind: Kind, counts: dict[int, int], symbols: str) -> tuple[Merge, ...]:
    """Moves the counts of the merged symbols to the first of them, and says how many they were."""
    if not symbols:
        return ()
    group = list(dict.fromkeys(Alphabet(kind, ()).codes_of(symbols).tolist()))
    if len(group) < 2:
        raise UserError(
            f"--merge {symbols!r}: give at least two different symbols, which become the first of them"
        )
    into, *others = group
    merges = tuple(Merge(code, into, counts.pop(code)) for code in others if code in counts)
    moved = sum(merge.times for merge in merges)
    if moved:
        counts[into] = counts.get(into, 0) + moved
    return merges
