"""`rnnewton presets [NAME]`: the thesis's experiments."""

import argparse
from typing import Any

from rnnewton.cli.common import add_json, show_json
from rnnewton.lab.presets import Preset, find, presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one in full, such as thesis/mlstm")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.name is not None:
        preset = find(args.name)
        if args.json:
            show_json(_document(preset))
        else:
            _show_one(preset)
    elif args.json:
        show_json({"presets": [_document(preset) for preset in presets().values()]})
    else:
        _show_all()
    return 0


def _document(preset: Preset) -> dict[str, Any]:
    from rnnewton.lab.building import parameters
    from rnnewton.lab.configuration import to_document

    printed = preset.printed
    return {
        "name": preset.name,
        "about": preset.about,
        "parameters": parameters(preset.settings, printed.symbols),
        "symbols": printed.symbols,
        "corpus": preset.corpus,
        "split": preset.split,
        "thesis": {
            "table": printed.table,
            "training_bits": printed.training,
            "validation_bits": printed.validation,
            "test_bits": printed.test,
            "parameters": printed.parameters,
        },
        "settings": to_document(preset.settings),
    }


def _show_all() -> None:
    print(f"{'preset':<27}{'parameters':>11}  {'train':>5} {'valid':>5} {'test':>5}  what it is")
    for preset in presets().values():
        printed = preset.printed
        bits = (
            f"{'' if value is None else f'{value:.2f}':>5}"
            for value in (printed.training, printed.validation, printed.test)
        )
        print(f"{preset.name:<27}{printed.parameters:>11,}  {' '.join(bits)}  {preset.about}")
    print(
        "\nThe figures are the thesis's, in bits per character."
        " Run one with: rnnewton train TEXT --preset NAME"
    )


def _show_one(preset: Preset) -> None:
    import tomli_w

    from rnnewton.lab.configuration import to_document

    printed = preset.printed
    figures = [("training", printed.training), ("validation", printed.validation), ("test", printed.test)]
    shown = ", ".join(f"{name} {value:.2f}" for name, value in figures if value is not None)
    print(f"# {preset.name}: {preset.about}")
    print(f"# thesis, {printed.table}: {shown} bits per character")
    print(
        f"# {printed.parameters:,} parameters with {printed.symbols} symbols; run on {preset.corpus}"
        + (f", split {preset.split}" if preset.split else "")
    )
    print(tomli_w.dumps(to_document(preset.settings)), end="")
