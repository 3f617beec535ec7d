"""`rnnewton bench`: how fast this machine is at what training does, beside what a user would pick instead."""

import argparse
from dataclasses import asdict

from rnnewton.cli.common import add_json, say, show_json
from rnnewton.lab.settings import CELLS
from rnnewton.lab.values import whole
from rnnewton.text.errors import UserError

NUMBERS = {
    "hidden": ("hidden units", 170),
    "symbols": ("symbols of the alphabet", 70),
    "length": ("characters of a sequence", 200),
    "sequences": ("sequences side by side", 64),
    "rounds": ("rounds; the median is shown", 5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cell", choices=CELLS, default="mlstm", help="kind of network (default: mlstm)")
    for name, (what, default) in NUMBERS.items():
        parser.add_argument(f"--{name}", default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument("--threads", metavar="N", help="processor threads (default: all cores)")
    parser.add_argument("--quick", action="store_true", help="leave out the slowest ways")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    numbers = {name: _number(name, getattr(args, name)) for name in NUMBERS}
    threads = None if args.threads is None else _number("threads", args.threads)
    import torch

    from rnnewton.lab.benchmark import BenchSettings, run_benchmark

    if threads is not None:
        torch.set_num_threads(threads)
    settings = BenchSettings(cell=args.cell, slow=not args.quick, **numbers)
    say(
        f"{args.cell}-{settings.hidden}, {torch.get_num_threads()} threads; every way {settings.rounds}"
        " times …"
    )
    timings = run_benchmark(settings)
    if args.json:
        show_json(
            {
                **asdict(settings),
                "threads": torch.get_num_threads(),
                "timings": [asdict(each) for each in timings],
            }
        )
        return 0
    print(f"{'what':<15}{'way':<42}{'ms':>9}{'characters/s':>14}{'GFLOP/s':>9}{'of torch.mm':>13}")
    for each in timings:
        rate = "" if each.gflops is None else f"{each.gflops:.1f}"
        share = "" if each.of_product is None else f"{each.of_product:.2f}"
        speed = "" if each.what == "matrix product" else f"{each.characters_per_second:,.0f}"
        print(f"{each.what:<15}{each.way:<42}{1e3 * each.seconds:>9.1f}{speed:>14}{rate:>9}{share:>13}")
    return 0


def _number(name: str, given: object) -> int:
    try:
        return whole(1).read(given)
    except ValueError as error:
        raise UserError(f"--{name} {given}: {error}.") from None
