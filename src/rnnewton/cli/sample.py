"""`rnnewton sample RUN`: let a trained model write."""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnewton.cli.common import say, show_json
from rnnewton.cli.evaluate import add_model_arguments

if TYPE_CHECKING:
    from rnnewton.lab.sampling import SamplingSettings
    from rnnewton.text.alphabet import Alphabet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a run, or of a saved model")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the sample goes on from")
    parser.add_argument("--length", type=int, default=500, help="characters to write (default: 500)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="below 1 plainer, above 1 wilder, 0 the likeliest (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed writes another text (default: 0)")
    parser.add_argument("--only", metavar="SYMBOLS", help="write these symbols only")
    parser.add_argument("--novel", action="store_true", help="mark the words that the training text lacks")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from rnnewton.lab.evaluation import alphabet_of
    from rnnewton.lab.sampling import SamplingSettings, as_text, marked, novel_words, sample
    from rnnewton.lab.trained import trained_model

    settings = SamplingSettings(args.prompt, args.length, args.temperature, args.seed, args.only)
    model = trained_model(args.run, args.checkpoint, args.device)
    alphabet = alphabet_of(model)
    pieces = as_text(sample(model, settings), alphabet)
    known = _known(args.run, alphabet) if args.novel else None
    written: list[str] = []

    def text() -> Iterator[str]:
        yield args.prompt
        for piece in pieces:
            written.append(piece)
            yield piece

    if args.json:
        list(text())
    else:
        before, after = ("\x1b[7m", "\x1b[0m") if sys.stdout.isatty() else ("«", "»")
        _stream(text() if known is None else marked(text(), known, before, after))
    sampled = "".join(written)
    novel = None if known is None else novel_words(args.prompt + sampled, known)
    _keep(args.run, settings, args.prompt + sampled)
    if args.json:
        show_json({"prompt": args.prompt, "text": sampled, **_shown(settings), "novel": novel})
    elif novel is not None:
        say(f"{len(novel)} words are not in the training text{': ' if novel else ''}{', '.join(novel)}")
    return 0


def _stream(pieces: Iterable[str]) -> None:
    """To the terminal as it is written; control characters of the text do not reach it."""
    for piece in pieces:
        sys.stdout.write("".join(c for c in piece if c in "\n\t\x1b" or c.isprintable()))
        sys.stdout.flush()
    sys.stdout.write("\n")


def _shown(settings: "SamplingSettings") -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("length", "temperature", "seed", "only")}


def _known(folder: str, alphabet: "Alphabet") -> set[str]:
    from rnnewton.lab.sampling import known_words
    from rnnewton.lab.trained import codes_of_ids, own_corpus

    return known_words(codes_of_ids(own_corpus(folder, alphabet).training, alphabet), alphabet)


def _keep(folder: str, settings: "SamplingSettings", text: str) -> None:
    """A copy in the run's `samples/`, where there is such a folder to write to; a sample is not lost for
    want of it."""
    from rnnewton.lab.run_folder import RunFolder

    run = RunFolder(Path(folder))
    if not run.exists():
        return
    with contextlib.suppress(OSError):
        run.samples.mkdir(exist_ok=True)
        name = f"seed-{settings.seed}-temperature-{settings.temperature:g}.txt"
        (run.samples / name).write_text(text, encoding="utf-8", errors="replace")
