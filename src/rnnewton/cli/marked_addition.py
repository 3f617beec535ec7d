"""`rnnewton marked-addition`: chapter 2.2's problem over optimisers, cells, lengths and seeds."""

import argparse
from pathlib import Path

from rnnewton.cli.common import add_json, say, show_json
from rnnewton.text.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "; several with commas between"
    parser.add_argument(
        "--lengths", default="50", metavar="T,…", help=f"steps of a sequence (default: 50{listed})"
    )
    parser.add_argument(
        "--optimizers",
        default="hf",
        metavar="NAME,…",
        help=f"hf, sgd, momentum, nesterov, adam, lstm-online (default: hf{listed})",
    )
    parser.add_argument(
        "--cells",
        default="rnn",
        metavar="CELL,…",
        help=f"rnn, lstm, lstm-original, mrnn, mlstm (default: rnn{listed})",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, seeds 0, 1, … (default: 1)")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="the first of these seeds (default: 0)"
    )
    parser.add_argument("--hidden", type=int, default=60, help="hidden units (default: 60)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="limit of each run (default: 1200)")
    parser.add_argument(
        "--rates", metavar="X,…", help="learning rates of first-order and online runs, each its own run"
    )
    parser.add_argument(
        "--sequences", type=int, help="sequences of a gradient (default: hf 1000, others 100, online 1)"
    )
    parser.add_argument(
        "--structural", type=float, default=1e-3, help="hf: structural damping mu (default: 0.001)"
    )
    parser.add_argument(
        "--tikhonov", type=float, default=1e-3, help="hf: Tikhonov damping lambda (default: 0.001)"
    )
    parser.add_argument(
        "--iterations", type=int, default=60, help="hf: most CG iterations of a step (default: 60)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="marked-addition.png",
        help="the figure (default: marked-addition.png)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    path = Path(args.out)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out {args.out}: the figure's name ends in .png, .svg or .pdf")
    from rnnewton.lab.marked_addition import (
        AdditionRun,
        AdditionSettings,
        all_runs,
        figure,
        rows,
        run_addition,
    )

    base = AdditionSettings(
        hidden=args.hidden,
        seconds=args.seconds,
        sequences=args.sequences,
        structural=args.structural,
        tikhonov=args.tikhonov,
        iterations=args.iterations,
    )
    grid = {
        "length": [_whole("--lengths", word) for word in args.lengths.split(",")],
        "optimizer": args.optimizers.split(","),
        "cell": [_cell(word) for word in args.cells.split(",")],
        "rate": [_number("--rates", word) for word in args.rates.split(",")] if args.rates else [None],
        "seed": range(args.first_seed, args.first_seed + max(args.seeds, 1)),
    }
    settings = list(dict.fromkeys(all_runs(base, grid)))
    runs: list[AdditionRun] = []
    for number, each in enumerate(settings, 1):
        rate = "" if each.rate is None else f", rate {each.rate:g}"
        name = f"{each.optimizer}, {each.cell}, length {each.length}{rate}, seed {each.seed}"
        result = run_addition(each)
        runs.append(result)
        how = "solved" if result.solved else "not solved"
        say(
            f"[{number}/{len(settings)}] {name}: {how}, held-out error {result.error:.4f} after"
            f" {result.seconds:.0f} s, {result.updates:,} updates"
        )
    try:
        figure(runs, path)
    except OSError as error:
        raise UserError(
            f"the figure {path} cannot be written ({error.strerror}): give another --out"
        ) from error
    say(f"figure: {path}")
    if args.json:
        show_json({"runs": [each.to_dict() for each in runs], "figure": str(path)})
        return 0
    table = rows(runs)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    return 0


def _cell(word: str) -> str:
    from rnnewton.lab.settings import CELLS

    if word not in CELLS:
        raise UserError(f"--cells {word!r}: the cells are {', '.join(CELLS)}")
    return word


def _whole(flag: str, word: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise UserError(f"{flag} {word!r} is not a whole number") from error


def _number(flag: str, word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise UserError(f"{flag} {word!r} is not a number") from error
