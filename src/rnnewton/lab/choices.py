"""What the program chooses where nothing was said: width, batches and budget from the text's size and the
machine.

Only facts decide that are the same each time: the text's length, its symbols, the number of cores, the
memory. So two runs of one command choose alike.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from rnnewton.lab.building import architecture, parameters
from rnnewton.lab.configuration import changed, flat
from rnnewton.lab.settings import Settings
from rnnewton.lab.values import characters_of
from rnnewton.recurrent.layout import layout_of
from rnnewton.text.errors import UserError

# A core's useful arithmetic in the passes, in operations per second, deliberately low: native kernels and
# eager torch.
NATIVE_CORE, EAGER_CORE = 8e10, 2e10
ACCELERATOR = 5e12
WIDTHS = (32, 48, 64, 96, 128, 170, 256, 384, 512, 768, 1024)
TEXT_PER_WEIGHT = 5  # characters of text for each weight …
READ_PER_WEIGHT = 120  # … and characters that the budget can read for each
RATES = {"sgd": 1.0, "momentum": 0.2, "nesterov": 0.2, "adam": 4e-3, "lstm-online": 0.05}
ONLINE_REPORT = 5_000  # updates of a line of metrics in online learning
REPORT = 250_000  # characters of a first-order optimiser's line of metrics


@dataclass(frozen=True)
class Facts:
    """What the choices rest on."""

    characters: int  # of the training text
    symbols: int
    cores: int
    memory: int  # bytes of the machine
    native: bool = True  # whether the native kernels can be had
    accelerator: bool = False  # whether another device than the processor computes


def machine() -> tuple[int, int]:
    """Cores that this process may use, and bytes of memory."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 4 << 30
    return cores, memory


def resolve(settings: Settings, facts: Facts) -> Settings:
    """The settings with nothing left open but what may stay so: the limits that are not set."""
    given = flat(settings)
    chosen: dict[str, Any] = {}

    def choose(name: str, value: Any) -> None:
        if given[name] is None:
            chosen[name] = value

    choose("memory", max(facts.memory // 4, 1 << 28))
    if given["steps"] is None and given["seconds"] is None:
        chosen["seconds"] = _seconds(facts)
    budget = given["seconds"] or chosen.get("seconds") or _seconds(facts)
    choose("patience", 10)
    choose("length", 100)
    choose("hidden", (_width(settings, facts, budget),))
    for name, value in _optimizer(settings, facts).items():
        choose(name, value)
    settings = changed(settings, chosen)
    _check(settings)
    return settings


def _optimizer(settings: Settings, facts: Facts) -> dict[str, Any]:
    name = settings.optimizer.optimizer
    if name == "hf":
        return _hessian_free(settings, facts)
    length = settings.sequences.length or 100
    if name == "lstm-online":  # an update is one character of every stream
        batch = settings.optimizer.batch or max(1, min(16, facts.characters // 1000))
        updates = max(1, min(ONLINE_REPORT, (facts.characters - 1) // batch))
    else:
        batch = settings.optimizer.batch or max(1, min(64, facts.characters // (20 * length)))
        updates = max(1, round(min(REPORT, facts.characters) / (batch * length)))
    return {"learning_rate": RATES[name], "batch": batch, "report_every": updates, "average": 0.99}


def _hessian_free(settings: Settings, facts: Facts) -> dict[str, Any]:
    """The small-batch form with a Kronecker-factored metric; thesis-sized batches take its sum of
    dampings.
    """
    first = min(20_000, max(facts.characters // 10, 1))
    gradient = settings.sequences.gradient_batch or str(first)
    last = settings.sequences.final_gradient_batch
    if last is None:  # a batch that the user gives stays as it is
        last = (
            gradient
            if settings.sequences.gradient_batch
            else str(max(min(200_000, facts.characters // 4), first))
        )
    kronecker = settings.optimizer.preconditioner in (None, "kronecker")
    metric = kronecker and settings.optimizer.damping is None
    plain = settings.optimizer.damping is not None or not kronecker
    return {
        "gradient_batch": gradient,
        "final_gradient_batch": last,
        "curvature_batch": "1/4" if plain and characters_of(gradient, facts.characters) > 10**6 else "1/5",
        "preconditioner": "none" if plain else "kronecker",
        "damping": "metric:1" if metric else "structural:0.1+tikhonov:0.01",
        "cg_iterations": 8 if metric else 100 if characters_of(gradient, facts.characters) > 10**6 else 10,
        "warm_start": 0.9 if metric else 0.95,
        "average": 0.9,
    }


def _seconds(facts: Facts) -> float:
    """Two minutes for a short text, ten for a million characters, an hour at most; whole minutes."""
    minutes = 10 * math.sqrt(facts.characters / 1e6)
    return 60.0 * min(max(round(minutes), 2), 60)


def _width(settings: Settings, facts: Facts, seconds: float) -> int:
    """The widest layer that the text can teach and that the budget can train."""
    rate = facts.cores * (NATIVE_CORE if facts.native else EAGER_CORE)
    rate = ACCELERATOR if facts.accelerator else rate
    chosen = WIDTHS[0]
    for width in WIDTHS:
        wider = changed(settings, {"hidden": (width,)})
        weights = parameters(wider, facts.symbols)
        can_read = seconds * rate / operations(wider, facts.symbols)
        if weights * TEXT_PER_WEIGHT <= facts.characters and weights * READ_PER_WEIGHT <= can_read:
            chosen = width
    return chosen


def operations(settings: Settings, symbols: int) -> int:
    """Of a gradient, per character: three passes of a product and a sum per weight; inputs are looked up
    for nothing.
    """
    return 6 * layout_of(replace(architecture(settings.model, symbols), inputs=1)).size


def _check(settings: Settings) -> None:
    """What no single setting can know of the others."""
    optimizer, cell = settings.optimizer, settings.model.cell
    if optimizer.optimizer == "lstm-online" and cell not in ("lstm", "lstm-original"):
        raise UserError(f"--optimizer lstm-online learns LSTMs only, and --cell is {cell}; take --cell lstm.")
    regularized = settings.regularization
    if optimizer.optimizer == "lstm-online" and (
        regularized.weight_decay or regularized.weight_noise or regularized.dropout
    ):
        raise UserError("lstm-online has no weight decay, weight noise or dropout; take another --optimizer.")
    if optimizer.schedule == "cosine" and settings.limits.steps is None:
        raise UserError("--schedule cosine falls to zero at the last step: give --steps too.")
    if settings.sequences.carry and optimizer.optimizer == "hf":
        raise UserError("--carry is for first-order optimisers; with hf every sequence starts from state 0.")
    if settings.model.forget_bias is not None and not settings.model.bias:
        raise UserError("--forget-bias needs biases on the gates; give --bias too.")
    if settings.optimizer.tap == "cell" and cell in ("rnn", "mrnn"):
        raise UserError(f"--tap cell needs a gated cell, and --cell is {cell}; take --tap output.")


def in_one_line(settings: Settings, facts: Facts) -> str:
    """What the run is, for a person."""
    model, sequences, optimizer, limits = (
        settings.model,
        settings.sequences,
        settings.optimizer,
        settings.limits,
    )
    units = "-".join(str(width) for width in model.hidden or ())
    parts = [f"{model.cell} of {units} units, {parameters(settings, facts.symbols):,} weights"]
    parts.append(f"sequences of {sequences.length}")
    if optimizer.optimizer == "hf":
        first, last = sequences.gradient_batch or "all", sequences.final_gradient_batch
        growing = "" if last in (None, first) else f" growing to {_amount(last)}"
        parts.append(
            f"Hessian-free on {_amount(first)}{growing}, curvature on"
            f" {_amount(sequences.curvature_batch, 'all of them')}"
        )
        parts.append(f"{optimizer.damping} damping, {optimizer.cg_iterations} iterations")
    else:
        parts.append(
            f"{optimizer.optimizer} at rate {optimizer.learning_rate:g}, {optimizer.batch} sequences an"
            " update"
        )
    ends = [] if limits.steps is None else [f"{limits.steps} steps"]
    if limits.seconds is not None:
        minutes = limits.seconds / 60
        ends.append(f"{minutes:.3g} minutes" if minutes >= 2 else f"{limits.seconds:g} seconds")
    return "; ".join([*parts, f"until {' or '.join(ends)}"])


def _amount(amount: str | None, everything: str = "the whole text") -> str:
    if amount is None or amount == "all":
        return everything
    return f"{int(amount):,} characters" if amount.isdecimal() else amount
