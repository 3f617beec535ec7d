"""`rnnewton compare RUN…`: runs side by side, with the thesis's figures."""

import argparse

from rnnewton.cli.common import add_json, show_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from rnnewton.lab.compare import as_document, as_markdown, as_text, row_of

    rows = [row_of(folder) for folder in args.runs]
    if args.json:
        show_json(as_document(rows))
    elif args.markdown:
        print(as_markdown(rows))
    else:
        print(as_text(rows))
        print("\nbits per character; work in epochs of gradient over the training text")
    return 0
