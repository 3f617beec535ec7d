"""Runs side by side, and beside them what the thesis printed where a run is one of its experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rnnewton.lab.configuration import changed, from_document
from rnnewton.lab.presets import Printed, presets
from rnnewton.lab.run_folder import RunFolder
from rnnewton.lab.settings import Settings
from rnnewton.text.errors import UserError

HEADINGS = (
    "run",
    "model",
    "optimiser",
    "parameters",
    "work",
    "seconds",
    "steps",
    "train",
    "validation",
    "test",
)


@dataclass(frozen=True)
class Row:
    """One run: bits per character of its best model, as far as it is."""

    run: str
    preset: str | None
    model: str
    optimizer: str
    parameters: int | None
    work: float | None
    seconds: float | None
    step: int | None
    finished: bool
    training_bits: float | None
    validation_bits: float | None
    test_bits: float | None
    thesis: Printed | None


def row_of(folder: str | Path) -> Row:
    """What a run folder says; one that is still training is shown as far as it has come."""
    run = RunFolder(Path(folder))
    if not run.exists():
        raise UserError(
            f"{folder} is not a run folder: it has no config.toml; give the folder that `train` printed."
        )
    settings = changed(Settings(), from_document(run.read_config(), str(run.path / "config.toml")))
    done = run.read_done()
    known = done if done is not None else _so_far(run)
    preset = presets().get(settings.preset) if settings.preset is not None else None
    return Row(
        run=str(folder),
        preset=settings.preset,
        model=f"{settings.model.cell} {'-'.join(map(str, settings.model.hidden or ()))}",
        optimizer=_optimizer(settings),
        parameters=_whole(known.get("parameters")),
        work=_number(known.get("work")),
        seconds=_number(known.get("seconds")),
        step=_whole(known.get("step")),
        finished=done is not None,
        training_bits=_number(known.get("training_bits")),
        validation_bits=_number(known.get("validation_bits")),
        test_bits=_number(known.get("test_bits")),
        thesis=None if preset is None else preset.printed,
    )


def _so_far(run: RunFolder) -> dict[str, Any]:
    records = run.read_metrics()
    if not records:
        return {}
    bits = [value for record in records if (value := _number(record.get("validation_bits"))) is not None]
    return {**records[-1], "validation_bits": min(bits, default=None)}


def _optimizer(settings: Settings) -> str:
    optimizer = settings.optimizer
    return f"hf {optimizer.damping}" if optimizer.optimizer == "hf" else optimizer.optimizer


def as_table(rows: list[Row]) -> list[list[str]]:
    """Cells of text, a line per run; the thesis's figures stand in a line of their own under the run."""
    lines: list[list[str]] = []
    for row in rows:
        name = row.run if row.finished else f"{row.run} (unfinished)"
        lines.append(
            [
                name,
                row.model,
                row.optimizer,
                _cell(row.parameters, "{:,}"),
                _cell(row.work, "{:.2f}"),
                _cell(row.seconds, "{:,.0f}"),
                _cell(row.step, "{}"),
                *_bits(row.training_bits, row.validation_bits, row.test_bits),
            ]
        )
        if row.thesis is not None:
            printed = row.thesis
            bits = _bits(printed.training, printed.validation, printed.test)
            lines.append(
                [f"  {row.preset}, {printed.table}", "", "", f"{printed.parameters:,}", "", "", "", *bits]
            )
    return lines


def as_markdown(rows: list[Row]) -> str:
    """A table for a README."""
    rules = ["---", "---", "---", *("---:" for _ in HEADINGS[3:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (list(HEADINGS), rules, *as_table(rows)))


def as_text(rows: list[Row]) -> str:
    """Columns for a terminal."""
    lines = [list(HEADINGS), *as_table(rows)]
    sizes = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    align: Sequence[Callable[[str, int], str]] = [str.ljust] * 3 + [str.rjust] * (len(HEADINGS) - 3)
    return "\n".join(
        "  ".join(side(cell, size) for cell, size, side in zip(line, sizes, align)).rstrip() for line in lines
    )


def as_document(rows: list[Row]) -> dict[str, Any]:
    return {"runs": [asdict(row) for row in rows]}


def _bits(*values: float | None) -> list[str]:
    return [_cell(value, "{:.3f}") for value in values]


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
