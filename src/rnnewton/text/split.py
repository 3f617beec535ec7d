"""Where a text is cut into training, validation and test: by fractions, by counts of symbols, or by files."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rnnewton.text.errors import UserError

DEFAULT = "0.9/0.05/0.05"
HELD_OUT = 5_000_000  # characters: of a very long text no more than this is held out by default
_NUMBERS = re.compile(r"[\d._]+(/[\d._]+)*")
_REMEDY = "give fractions as 0.9/0.05/0.05, counts as 2800000/200000/200000, or files as VALIDATION,TEST"


@dataclass(frozen=True)
class Split:
    """Either shares of one text (training, validation[, test]) or further files for validation and test."""

    shares: tuple[float, ...] = ()  # fractions, or counts if `counted`
    counted: bool = False
    files: tuple[Path, ...] = ()
    at_most: int | None = None  # symbols of each part that is held out


def parse(text: str) -> Split:
    """Reads `--split`."""
    if not text.strip():
        raise UserError(f"--split is empty: {_REMEDY}")
    if not _NUMBERS.fullmatch(text):
        files = tuple(Path(name) for name in text.split(",") if name)
        if not files:
            raise UserError(f"--split {text} names no file: {_REMEDY}")
        return Split(files=files)
    parts = text.split("/")
    if not 2 <= len(parts) <= 3:
        raise UserError(f"--split {text} has {len(parts)} parts, where two or three are expected: {_REMEDY}")
    try:
        if all("." not in part for part in parts):
            return Split(tuple(float(int(part)) for part in parts), counted=True)
        shares = tuple(float(part) for part in parts)
    except (ValueError, OverflowError) as error:
        raise UserError(f"--split {text} is not made of numbers: {_REMEDY}") from error
    if sum(shares) > 1 + 1e-9:
        raise UserError(f"--split {text} is more than the whole text: fractions add up to 1 at most")
    return Split(shares)


def default() -> Split:
    """What is taken where nobody says anything."""
    return replace(parse(DEFAULT), at_most=HELD_OUT)


def lengths(split: Split, characters: int) -> tuple[int, int, int]:
    """How many symbols of one text go to training, validation and test; each part asked for has at least
    2."""
    if split.counted:
        counts = [int(share) for share in split.shares]
        if sum(counts) > characters:
            raise UserError(
                f"--split asks for {sum(counts):,} characters and the text has {characters:,}: ask for"
                " fewer, or give fractions"
            )
    else:
        limit = characters if split.at_most is None else split.at_most
        held_out = [
            max(2, min(int(share * characters), limit)) if share > 0 else 0 for share in split.shares[1:]
        ]
        whole = sum(split.shares) > 1 - 1e-9
        training = characters - sum(held_out) if whole else int(split.shares[0] * characters)
        counts = [training, *held_out]
    asked = [part for part, share in zip(counts, split.shares) if share > 0]
    if min([counts[0], *asked]) < 2 or sum(counts) > characters:
        raise UserError(
            f"the text of {characters:,} characters is too short to be split into {len(asked)} parts of at"
            " least 2 each, as --split asks; give a longer text or another --split"
        )
    training, validation, test = (*counts, 0)[:3]
    return training, validation, test
