"""The figure at the end of a run: bits per character, damping and CG iterations over training time."""

from __future__ import annotations

import math
import os
from typing import Any

from rnnewton.lab.run_folder import RunFolder

CURVES = "curves.png"


def draw_curves(run: RunFolder) -> None:
    """Draw `curves.png` from the run's metrics; a run without a step has no curves."""
    records = run.read_metrics()
    if not records:
        return
    from matplotlib.figure import Figure  # no pyplot: no global state, no window

    figure = Figure(figsize=(8, 9), layout="constrained")
    bits, damping, iterations = figure.subplots(3, 1, sharex=True)
    for label, key, scale in (
        ("training", "loss_before", math.log(2)),
        ("validation", "validation_bits", 1.0),
    ):
        times, values = _curve(records, key)
        bits.plot(times, [value / scale for value in values], ".-", label=label, markersize=3, linewidth=1)
    bits.set_ylabel("bits per character")
    bits.legend()
    drawn = [_plot(damping, records, key) for key in ("mu", "lambda", "kappa")]
    if any(drawn):
        damping.set_yscale("log")
        damping.legend()
    damping.set_ylabel("damping")
    times, values = _curve(records, "cg_iterations")
    iterations.step(times, values, where="mid", linewidth=1)
    iterations.set_ylabel("CG iterations")
    iterations.set_xlabel("seconds of training")
    figure.suptitle(run.path.name)
    unfinished = run.path / f".{CURVES}.{os.getpid()}"
    try:
        figure.savefig(unfinished, format="png", dpi=120)
        unfinished.replace(run.path / CURVES)
    finally:
        unfinished.unlink(missing_ok=True)


def _curve(records: list[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    points = [(record["seconds"], record[key]) for record in records if record.get(key) is not None]
    return [time for time, _ in points], [value for _, value in points]


def _plot(axes: Any, records: list[dict[str, Any]], key: str) -> bool:
    times, values = _curve(records, key)
    if not any(value > 0 for value in values):
        return False
    axes.plot(times, values, label=key, linewidth=1)
    return True
