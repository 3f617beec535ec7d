"""Scoring a text: one stream from state zero, carried over all borders; the first symbol is given, the rest
scored.

N  symbols of the text, N - 1 of them scored      V  symbols of the alphabet
T  symbols of one block; blocks only save time and change no score (ids (T, 1), logits (T, 1, V))

A symbol that the model does not know costs 8 bits a byte on top of the unknown symbol's own cost. Where the
alphabet has no unknown symbol it costs 8 bits a byte on top of log2 V, and the network, which has no input
for it, does not see it.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text import reading
from rnnewton.text.alphabet import Alphabet, Codes
from rnnewton.text.errors import UserError

BLOCK = 1024  # T
_NAMED = 8  # unknown symbols that a line names, at most
Bits = NDArray[np.float64]


class Learner(Protocol):
    """Something that changes the weights after symbols were scored, as dynamic evaluation does."""

    segment: int  # symbols that are scored before they are learned

    def score_and_learn(
        self, inputs: Tensor, targets: Tensor, state: list[State] | None
    ) -> tuple[Tensor, list[State]]:
        """Nats (T,) at the weights as they were, and the state after; then the weights move."""
        ...


class Reader:
    """One stream through a model: what it has read so far is its state and the last symbol."""

    def __init__(self, model: RecurrentModel, learner: Learner | None = None) -> None:
        if model.architecture.loss != "softmax" or not model.architecture.categorical:
            raise UserError(
                "this model does not predict symbols: only a model trained on a text can score one"
            )
        self.model, self.learner = model, learner
        self.state: list[State] | None = None
        self.last: int | None = None
        self._device = next(model.parameters()).device

    def read(self, ids: NDArray[Any]) -> Bits:
        """The bits of each of some ids, after all that was read before. The stream's first costs log2 V:
        nothing precedes it, and nobody scores it."""
        bits = np.empty(len(ids))
        start = 0
        if self.last is None and len(ids):
            bits[0] = np.log2(self.model.architecture.output_size)
            self.last = int(ids[0])
            start = 1
        if start == len(ids):
            return bits
        assert self.last is not None
        line = torch.from_numpy(np.concatenate(([self.last], ids[start:])).astype(np.int64))
        line = line.to(self._device)[:, None]
        length = BLOCK if self.learner is None else self.learner.segment
        for at in range(0, len(line) - 1, length):
            inputs = line[at : min(at + length, len(line) - 1)]
            nats = self._block(inputs, line[at + 1 : at + 1 + len(inputs)])
            bits[start + at : start + at + len(inputs)] = nats.double().cpu().numpy() / np.log(2)
        self.last = int(ids[-1])
        return bits

    def _block(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.learner is not None:
            nats, self.state = self.learner.score_and_learn(inputs, targets, self.state)
            return nats
        with torch.no_grad():
            logits, self.state = self.model(inputs, self.state)
            return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


@dataclass(frozen=True)
class Stretch:
    """A stretch of a scored text, symbol by symbol."""

    codes: Codes
    bits: Bits  # of each symbol; the text's first one is not scored
    unknown: NDArray[np.bool_]
    bytes: NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """What scoring a text gives: `characters` are the scored ones, `bytes` are theirs."""

    bits_per_character: float
    characters: int
    bytes: int
    bits_per_byte: float
    unknown: int
    dynamic: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def stretches(reader: Reader, alphabet: Alphabet, blocks: Iterable[Codes]) -> Iterator[Stretch]:
    """A text scored block by block, in order."""
    for codes in blocks:
        if not len(codes):
            continue
        ids = alphabet.ids_of(codes)
        seen = ids >= 0
        bits = np.full(len(codes), np.log2(len(alphabet)))
        bits[seen] = reader.read(ids[seen])
        unknown = alphabet.unknown_among(codes)
        sizes = alphabet.bytes_of(codes)
        bits += 8 * (unknown * sizes)
        yield Stretch(codes, bits, unknown, sizes)


class Total:
    """Sums of what was scored."""

    def __init__(self) -> None:
        self.bits, self.symbols, self.bytes, self.unknown = 0.0, 0, 0, 0
        self.strangers: set[int] = set()  # the codes that the model does not know

    def add(self, stretch: Stretch) -> None:
        """Adds a stretch; the first symbol of the first one is given, not scored."""
        first = 1 if self.symbols == 0 else 0
        self.symbols += len(stretch.codes)
        self.bits += float(stretch.bits[first:].sum())
        self.bytes += int(stretch.bytes[first:].sum())
        self.unknown += int(stretch.unknown.sum())
        self.strangers.update(np.unique(stretch.codes[stretch.unknown]).tolist())

    def evaluation(self, seconds: float, dynamic: bool) -> Evaluation:
        """The score; fewer than two symbols have none."""
        if self.symbols < 2:
            raise UserError(
                f"the text has {self.symbols} symbols: at least 2 are needed, as the first one is given,"
                " not scored"
            )
        scored = self.symbols - 1
        return Evaluation(
            bits_per_character=self.bits / scored,
            characters=scored,
            bytes=self.bytes,
            bits_per_byte=self.bits / self.bytes,
            unknown=self.unknown,
            dynamic=dynamic,
            seconds=seconds,
        )


def alphabet_of(model: RecurrentModel) -> Alphabet:
    """The alphabet that a model was trained with."""
    alphabet = model.alphabet
    if not isinstance(alphabet, Alphabet):
        raise UserError("this model has no alphabet: only a model trained on a text can read or write one")
    return alphabet


def blocks_of(text: str | bytes | Path, alphabet: Alphabet) -> Iterator[Codes]:
    """A text in memory, or a file, as blocks of codes."""
    if isinstance(text, Path):
        pieces = reading.Piece(text).blocks()
        return reading.codes(pieces, alphabet.kind, errors="surrogateescape")
    return iter((alphabet.codes_of(text),))


def evaluate(
    model: RecurrentModel, text: str | bytes | Path | Iterable[Codes], learner: Learner | None = None
) -> Evaluation:
    """Bits per character of a whole text: a str, bytes, or a file. With a learner, as dynamic evaluation."""
    alphabet = alphabet_of(model)
    blocks = blocks_of(text, alphabet) if isinstance(text, (str, bytes, Path)) else text
    began = time.perf_counter()
    total = Total()
    for stretch in stretches(Reader(model, learner), alphabet, blocks):
        total.add(stretch)
    return total.evaluation(time.perf_counter() - began, learner is not None)


def refuse_unknown(text: Iterable[Codes], alphabet: Alphabet) -> None:
    """What --strict asks: the first symbol that the model does not know is an error that says which and
    where."""
    position = 0
    for codes in text:
        places = np.flatnonzero(alphabet.unknown_among(codes))
        if len(places):
            raise UserError(
                f"--strict: the text has {alphabet.show(int(codes[places[0]]))} at character"
                f" {position + int(places[0]):,} (counted from 0), which the model does not know: leave it"
                " out, or"
                " leave out --strict to count it at 8 bits a byte more"
            )
        position += len(codes)


def unknown_line(evaluation: Evaluation, alphabet: Alphabet, strangers: Iterable[int] = ()) -> str | None:
    """Says which symbols were unknown and how they were coded, if there were any."""
    if not evaluation.unknown:
        return None
    own = f"1/{len(alphabet)}" if alphabet.unknown is None else "the unknown symbol's own cost"
    share = 100 * evaluation.unknown / (evaluation.characters + 1)
    shown = [alphabet.show(code) for code in sorted(strangers)]
    rest = [f"and {len(shown) - _NAMED:,} others"] if len(shown) > _NAMED else []
    names = f" ({', '.join(shown[:_NAMED] + rest)})" if shown else ""
    return (
        f"{evaluation.unknown:,} symbols ({share:.3g} %) are unknown to the model{names}: each is coded at"
        f" 8 bits a byte on top of {own}"
    )
