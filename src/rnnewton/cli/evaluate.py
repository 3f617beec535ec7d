"""`rnnewton evaluate RUN [TEXT]`: bits per character of a text."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnewton.cli.common import add_json, say, show_json
from rnnewton.text.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from rnnewton.lab.evaluation import Evaluation, Learner, Stretch
    from rnnewton.recurrent.model import RecurrentModel
    from rnnewton.text.alphabet import Alphabet, Codes

PARTS = ("training", "validation", "test")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What all commands on a trained model share."""
    parser.add_argument(
        "--checkpoint",
        choices=("best", "newest"),
        default="best",
        help="which of the run's models (default: best)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or mps (default: cpu)")
    add_json(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a run, or of a saved model")
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="file to score (default: the run's own test text)"
    )
    parser.add_argument(
        "--part", choices=PARTS, default="test", help="without TEXT: which part of the run's own text"
    )
    parser.add_argument(
        "--strict", action="store_true", help="a symbol that the model does not know is an error"
    )
    parser.add_argument(
        "--surprise",
        metavar="FILE",
        help="write what each character cost: FILE.json, FILE.html, or - for the terminal",
    )
    dynamic = parser.add_argument_group("learning while reading")
    dynamic.add_argument(
        "--dynamic",
        action="store_true",
        help="adapt the model while it reads; each character is scored before it is learned",
    )
    dynamic.add_argument(
        "--rate", type=float, help="how fast it adapts (default: 0.0002 for rms, 0.003 for sgd)"
    )
    dynamic.add_argument("--segment", type=int, default=20, help="characters of one gradient (default: 20)")
    dynamic.add_argument(
        "--rule",
        choices=("sgd", "rms"),
        help="rms: gradients divided by their usual size on the run's training text; or sgd (default: rms, if"
        " that text can be read)",
    )
    dynamic.add_argument(
        "--pull", type=float, default=0.0, help="pull back to the trained weights (default: 0)"
    )
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.json and args.surprise == "-":
        raise UserError("--json and --surprise - both want standard output: give --surprise a file")
    from rnnewton.lab.evaluation import alphabet_of, refuse_unknown
    from rnnewton.lab.trained import trained_model

    model = trained_model(args.run, args.checkpoint, args.device)
    alphabet = alphabet_of(model)
    if args.strict:
        refuse_unknown(_blocks(args, alphabet), alphabet)
    result = _score(args, model, alphabet)
    merged = [alphabet.show(merge.code) for merge in alphabet.merges]
    if merged:
        say(
            f"{len(merged)} symbols count as another one, as --merge asked in training: their difference"
            " is not scored"
        )
    if args.json:
        show_json(result.to_dict())
    else:
        print(_line(result))
    return 0


def _score(args: argparse.Namespace, model: "RecurrentModel", alphabet: "Alphabet") -> "Evaluation":
    from rnnewton.lab.dynamic import DynamicSettings, learner_for

    if not args.dynamic:
        return _read(args, model, alphabet, None)
    rms = None if args.rule == "sgd" or args.rate == 0 else _rms(args, model, alphabet)
    rule = "sgd" if rms is None and args.rate != 0 else args.rule or "rms"
    settings = DynamicSettings(rule, args.rate, args.segment, args.pull)
    with learner_for(model, settings, rms) as learner:
        return _read(args, model, alphabet, learner)


def _read(
    args: argparse.Namespace, model: "RecurrentModel", alphabet: "Alphabet", learner: "Learner | None"
) -> "Evaluation":
    from time import perf_counter

    from rnnewton.lab.evaluation import Reader, Total, stretches, unknown_line

    began, total = perf_counter(), Total()
    scored = stretches(Reader(model, learner), alphabet, _blocks(args, alphabet))
    if args.surprise is None:
        for stretch in scored:
            total.add(stretch)
    else:
        _write_surprise(args, _added(scored, total), alphabet)
    result = total.evaluation(perf_counter() - began, args.dynamic)
    line = unknown_line(result, alphabet, total.strangers)
    if line is not None:
        say(line)
    return result


def _added(scored: "Iterable[Stretch]", total: Any) -> "Iterator[Stretch]":
    for stretch in scored:
        total.add(stretch)
        yield stretch


def _write_surprise(args: argparse.Namespace, scored: "Iterable[Stretch]", alphabet: "Alphabet") -> None:
    from rnnewton.lab.surprise import as_ansi, as_html, as_json

    if args.surprise == "-":
        for piece in as_ansi(scored, alphabet.kind):
            print(piece, end="")
        print()
        return
    path = Path(args.surprise)
    if path.suffix not in (".json", ".html"):
        raise UserError(
            f"--surprise {args.surprise}: the name decides the format; end it in .json or .html, or give -"
        )
    pieces = (
        as_json(scored, alphabet.kind)
        if path.suffix == ".json"
        else as_html(scored, alphabet.kind, path.stem)
    )
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    except OSError as error:
        raise UserError(
            f"--surprise {args.surprise} cannot be written ({error.strerror}): give another name"
        ) from error


def _blocks(args: argparse.Namespace, alphabet: "Alphabet") -> "Iterator[Codes]":
    from rnnewton.lab.trained import codes_of_ids, own_corpus
    from rnnewton.text.corpus import encode_file

    if args.text is not None:
        return encode_file(args.text, alphabet)
    corpus = own_corpus(args.run, alphabet)
    ids = {"training": corpus.training, "validation": corpus.validation, "test": corpus.test}[args.part]
    if not len(ids):
        raise UserError(f"the run's text has no {args.part} part: give a TEXT, or another --part")
    return codes_of_ids(ids, alphabet)


def _rms(args: argparse.Namespace, model: "RecurrentModel", alphabet: "Alphabet") -> "list[Tensor] | None":
    """The usual size of gradients on the training text; None where nobody asked for it and that text is
    gone."""
    from rnnewton.lab.dynamic import gradient_rms
    from rnnewton.lab.trained import own_corpus

    try:
        training = own_corpus(args.run, alphabet).training
    except UserError as error:
        if args.rule == "rms":
            raise
        say(f"the run's own text cannot be read, so that --rule sgd is taken ({error})")
        return None
    say("measuring the usual size of gradients on the training text")
    return gradient_rms(model, training, args.segment)


def _line(result: "Evaluation") -> str:
    how = "dynamic, " if result.dynamic else ""
    return (
        f"{result.bits_per_character:.4f} bits per character ({how}{result.characters:,} characters),"
        f" {result.bits_per_byte:.4f} bits per byte, {result.seconds:.1f} s"
    )
