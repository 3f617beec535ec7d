"""`rnnewton jacobians RUN`: how far back a trained model's state reaches."""

import argparse
from pathlib import Path

from rnnewton.cli.common import say, show_json
from rnnewton.cli.evaluate import add_model_arguments
from rnnewton.text.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a run, or of a saved model")
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="file to read (default: the run's own validation text)"
    )
    parser.add_argument("--lags", type=int, default=100, help="longest time difference n (default: 100)")
    parser.add_argument(
        "--places", type=int, default=4, help="places in the text to average over (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the places (default: 0)")
    parser.add_argument(
        "--out", metavar="FILE", help="the figure, .png, .svg or .pdf (default: RUN/jacobians.png)"
    )
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from rnnewton.lab.evaluation import alphabet_of
    from rnnewton.lab.jacobians import JacobianSettings, figure, jacobians
    from rnnewton.lab.trained import own_corpus, trained_model
    from rnnewton.text.corpus import encode_file

    settings = JacobianSettings(lags=args.lags, places=args.places, seed=args.seed)
    path = Path(args.out) if args.out else Path(args.run) / "jacobians.png"
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--out {args.out}: the figure's name ends in .png, .svg or .pdf")
    model = trained_model(args.run, args.checkpoint, args.device)
    alphabet = alphabet_of(model)
    if args.text is None:
        ids = own_corpus(args.run, alphabet).validation
    else:
        ids = np.concatenate([alphabet.ids_of(codes) for codes in encode_file(args.text, alphabet)])
        ids = ids[ids >= 0]
    result = jacobians(model, ids, settings)
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
    print("root mean square of the singular values of dh(t)/dh(t-n), by layer")
    for lag in sorted({min(args.lags, round(n)) for n in np.geomspace(1, args.lags, 10)} | {0}):
        print(f"{lag:>6}" + "".join(f"{value:>12.3g}" for value in result.root_mean_square[:, lag]))
    return 0
