"""`rnnewton time-lag RUN`: the bracket probe of chapter 5.2."""

import argparse
from pathlib import Path

from rnnewton.cli.common import say, show_json
from rnnewton.cli.evaluate import add_model_arguments
from rnnewton.text.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a run, or of a saved model")
    parser.add_argument("--steps", type=int, default=1000, help="steps after the context (default: 1000)")
    parser.add_argument("--smooth", type=int, default=10, help="steps of one mean (default: 10)")
    parser.add_argument("--trials", type=int, default=10, help="trials of each context (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all trials (default: 0)")
    parser.add_argument(
        "--context",
        action="append",
        metavar="TEXT",
        help="a context; give it several times (default: [[ and Th)",
    )
    parser.add_argument("--opening", default="[", metavar="SYMBOL", help="the opening bracket (default: [)")
    parser.add_argument("--closing", default="]", metavar="SYMBOL", help="the closing bracket (default: ])")
    parser.add_argument(
        "--out", metavar="FILE", help="the figure, .png, .svg or .pdf (default: RUN/time-lag.png)"
    )
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from rnnewton.lab.time_lag import TimeLagSettings, figure, time_lag
    from rnnewton.lab.trained import trained_model

    settings = TimeLagSettings(
        contexts=tuple(args.context or ("[[", "Th")),
        opening=args.opening,
        closing=args.closing,
        steps=args.steps,
        smooth=args.smooth,
        trials=args.trials,
        seed=args.seed,
    )
    path = Path(args.out) if args.out else Path(args.run) / "time-lag.png"
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out {args.out}: the figure's name ends in .png, .svg or .pdf")
    result = time_lag(trained_model(args.run, args.checkpoint, args.device), settings)
    try:
        figure(result, path)
    except OSError as error:
        raise UserError(
            f"the figure {path} cannot be written ({error.strerror}): give another --out"
        ) from error
    say(f"figure: {path}")
    if args.json:
        show_json(result.to_dict() | {"figure": str(path)})
        return 0
    print(
        f"log10 of P({args.closing!r}) / P({args.opening!r}), means of {args.smooth} steps and"
        f" {args.trials} trials"
    )
    print(f"{'step':>6}" + "".join(f"{'after ' + repr(context):>22}" for context in settings.contexts))
    for lag, values in result.rows():
        cells = (
            f"{mean:+.3f} ± {error:.3f}" if args.trials > 1 else f"{mean:+.3f}" for mean, error in values
        )
        print(f"{lag:>6}" + "".join(f"{cell:>22}" for cell in cells))
    return 0
