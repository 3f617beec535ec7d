"""What each character of a text cost: as JSON, and as text coloured by surprise for a terminal or a page.

The colour goes from none (0 bits) to full (`FULL` bits and more). The text's first character is given, not
scored.
"""

import html
import json
from collections.abc import Iterable, Iterator
from itertools import groupby

from rnnewton.lab.evaluation import Stretch
from rnnewton.text.alphabet import Kind

FULL = 8.0  # bits of the strongest colour
_LEVELS = 12
_RESET = "\x1b[0m"
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:15px/1.5 monospace;max-width:100ch;margin:2em auto;color:#000;background:#fff}}
div{{white-space:pre-wrap}}
{rules}
</style></head><body><h1>{title}</h1><p>From white, 0 bits, to red, {full:g} bits and more.</p><div>"""


def characters(stretch: Stretch, kind: Kind) -> list[str]:
    """The symbols as characters; a byte that is no character by itself as \\x and its two digits."""
    return [
        f"\\x{code & 0xFF:02x}"
        if (kind == "bytes" and code > 0x7E) or 0xD800 <= code <= 0xDFFF
        else chr(code)
        for code in stretch.codes.tolist()
    ]


def as_json(stretches: Iterable[Stretch], kind: Kind) -> Iterator[str]:
    """One JSON object in pieces: {"characters": […], "bits": […], "unknown": […]}; the first character has
    null bits."""
    kept = list(stretches)
    yield '{"characters": '
    yield json.dumps([character for stretch in kept for character in characters(stretch, kind)])
    bits: list[float | None] = [round(value, 5) for stretch in kept for value in stretch.bits.tolist()]
    if bits:
        bits[0] = None
    yield ', "bits": '
    yield json.dumps(bits)
    yield ', "unknown": '
    yield json.dumps([place for place, known in enumerate(_unknown(kept)) if known])
    yield "}\n"


def as_ansi(stretches: Iterable[Stretch], kind: Kind) -> Iterator[str]:
    """The text for a terminal of 24-bit colours."""
    for level, run in _runs(stretches, kind):
        text = "".join(run)
        if level == 0:
            yield text
            continue
        paint = "\x1b[38;2;0;0;0;48;2;{};{};{}m".format(*_colour(level))
        # The background must not run on over the rest of a line.
        yield "\n".join(f"{paint}{line}{_RESET}" if line else "" for line in text.split("\n"))


def as_html(stretches: Iterable[Stretch], kind: Kind, title: str) -> Iterator[str]:
    """A page of its own."""
    colours = [(level, *_colour(level)) for level in range(1, _LEVELS + 1)]
    rules = "\n".join(".s{}{{background:#{:02x}{:02x}{:02x}}}".format(*colour) for colour in colours)
    yield _HEAD.format(title=html.escape(title), rules=rules, full=FULL)
    for level, run in _runs(stretches, kind):
        text = html.escape("".join(run))
        yield text if level == 0 else f'<span class="s{level}">{text}</span>'
    yield "</div></body></html>\n"


def _runs(stretches: Iterable[Stretch], kind: Kind) -> Iterator[tuple[int, list[str]]]:
    """Neighbours of one colour together."""
    first = True
    for stretch in stretches:
        levels = [min(_LEVELS, int(value / FULL * _LEVELS)) for value in stretch.bits.tolist()]
        if first and levels:
            levels[0], first = 0, False
        for level, run in groupby(
            zip(levels, map(_visible, characters(stretch, kind))), key=lambda pair: pair[0]
        ):
            yield level, [character for _, character in run]


def _visible(character: str) -> str:
    """Control characters must not reach a terminal as they are."""
    if len(character) > 1 or character in "\n\t" or character.isprintable():
        return character
    return f"\\x{ord(character):02x}"


def _colour(level: int) -> tuple[int, int, int]:
    rest = 1 - level / _LEVELS
    return 255, round(60 + 195 * rest), round(40 + 215 * rest)


def _unknown(stretches: Iterable[Stretch]) -> Iterator[bool]:
    for stretch in stretches:
        yield from stretch.unknown.tolist()
