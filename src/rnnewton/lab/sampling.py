"""Letting a model write: a prompt, then symbol after symbol drawn from what the model predicts.

V  symbols of the alphabet      B  streams side by side; ids (B,), logits (B, V)
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rnnewton.lab.evaluation import alphabet_of
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.alphabet import Alphabet, Codes
from rnnewton.text.corpus import alphabet_text
from rnnewton.text.errors import UserError

_STARTS = ("\n", " ")  # what precedes the first symbol where there is no prompt
_BLOCK = 1024  # symbols of a prompt that are read at a time
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")  # letters, with apostrophes inside


@dataclass(frozen=True)
class SamplingSettings:
    """What is written, and how freely."""

    prompt: str | bytes = ""
    length: int = 500
    temperature: float = 1.0  # 0: always the likeliest symbol
    seed: int = 0
    only: str | None = None  # the symbols that may be written; None: all but the unknown one

    def __post_init__(self) -> None:
        if self.length < 0:
            raise UserError(f"the length of a sample is not below 0, as {self.length} is")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"a temperature is 0 or more, not {self.temperature}: 1 is the model's own")


def allowed_ids(alphabet: Alphabet, only: str | None) -> Tensor:
    """A mask (V,) of the ids that may be drawn."""
    if only is None:
        mask = torch.ones(len(alphabet), dtype=torch.bool)
        if alphabet.unknown is not None:
            mask[alphabet.unknown] = False  # it stands for many symbols and is none
        return mask
    codes = np.unique(alphabet.codes_of(only))
    if not len(codes):
        raise UserError("--only is empty: give the symbols that may be written")
    missing = codes[alphabet.unknown_among(codes)]
    if len(missing):
        raise UserError(f"--only has {alphabet.show(int(missing[0]))}, which the model does not know")
    mask = torch.zeros(len(alphabet), dtype=torch.bool)
    mask[torch.from_numpy(alphabet.ids_of(codes).astype(np.int64))] = True
    return mask


def draw(logits: Tensor, allowed: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """One id a row of logits (B, V): the model's distribution over the allowed ids, renormalised, then
    sharpened.

    Drawn in float64 on the processor, by one uniform number a row, so that a seed means the same everywhere.
    """
    scores = logits.detach().to(device="cpu", dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    if temperature == 0:
        return scores.argmax(-1)
    # The maximum is taken out first: a small temperature must not overflow.
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    cumulative = scores.softmax(-1).cumsum(-1)
    level = torch.rand(len(scores), 1, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, level, right=True).squeeze(-1)
    return chosen.clamp(max=int(allowed.nonzero()[-1]))


def sample(model: RecurrentModel, settings: SamplingSettings) -> Iterator[int]:
    """The ids that follow the prompt, one by one."""
    alphabet = alphabet_of(model)
    allowed = allowed_ids(alphabet, settings.only)
    ids = alphabet.encode(settings.prompt)
    if not len(ids):
        ids = torch.tensor([_start(alphabet)])
    return _continue(model, ids, allowed, settings)


def _continue(
    model: RecurrentModel, ids: Tensor, allowed: Tensor, settings: SamplingSettings
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(settings.seed)
    stream = model.stream()
    if stream is not None:
        stream.read(ids)
        mask = allowed.contiguous()
        for _ in range(settings.length):
            level = float(torch.rand((), generator=generator, dtype=torch.float64))
            yield stream.write(level, mask, settings.temperature)
        return
    device = next(model.parameters()).device
    first, *others = ids[:, None].to(device).split(_BLOCK)
    with torch.no_grad():
        logits, state = model(first, None)
        for block in others:
            logits, state = model(block, state)
    for _ in range(settings.length):
        chosen = draw(logits[-1], allowed, settings.temperature, generator)
        yield int(chosen)
        with torch.no_grad():
            logits, state = model(chosen[None].to(device), state)


def _start(alphabet: Alphabet) -> int:
    """A new line, a space, or the first symbol: what a text begins after."""
    for start in _STARTS:
        found = alphabet.ids_of(alphabet.codes_of(start))
        if found[0] >= 0 and found[0] != alphabet.unknown:
            return int(found[0])
    return 0


def as_text(ids: Iterable[int], alphabet: Alphabet) -> Iterator[str]:
    """The characters of a stream of ids; bytes are read as UTF-8, and what is not comes out as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for each in ids:
        symbol = alphabet.symbols[each]
        text = decoder.decode(symbol) if isinstance(symbol, bytes) else symbol
        if text:
            yield text
    rest = decoder.decode(b"", True)
    if rest:
        yield rest


def sample_text(model: RecurrentModel, settings: SamplingSettings) -> str:
    """A whole sample, without its prompt."""
    return "".join(as_text(sample(model, settings), alphabet_of(model)))


def words_of(text: str) -> list[str]:
    """Runs of letters, with apostrophes inside."""
    return _WORD.findall(text)


def known_words(blocks: Iterable[Codes], alphabet: Alphabet) -> set[str]:
    """Every word of a training text."""
    words: set[str] = set()
    carried = ""
    for codes in blocks:
        raw = alphabet_text(alphabet.kind, codes)
        text = carried + (raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw)
        # The last word may go on in the next block.
        whole = re.search(r"[\w'’]*\Z", text)
        cut = whole.start() if whole else len(text)
        carried = text[cut:][-1000:]
        words.update(words_of(text[:cut]))
    words.update(words_of(carried))
    return words


def marked(text: Iterable[str], known: set[str], before: str, after: str) -> Iterator[str]:
    """A stream of text with `before` and `after` around each word that is not known; a word waits for its
    end."""
    waiting = ""
    for piece in text:
        waiting += piece
        whole = re.search(r"[\w'’]*\Z", waiting)
        cut = whole.start() if whole else len(waiting)
        if cut:
            yield _mark(waiting[:cut], known, before, after)
            waiting = waiting[cut:]
    if waiting:
        yield _mark(waiting, known, before, after)


def novel_words(text: str, known: set[str]) -> list[str]:
    """The words of a text that are not known, each once, in order."""
    return list(dict.fromkeys(word for word in words_of(text) if word not in known))


def _mark(text: str, known: set[str], before: str, after: str) -> str:
    return _WORD.sub(lambda found: found[0] if found[0] in known else f"{before}{found[0]}{after}", text)
