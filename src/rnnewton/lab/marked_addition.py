"""Marked addition by any optimiser: one run a seed, with a limit of seconds; a table and a figure of many
runs.

T  length of a sequence      B  sequences of a batch
A run ends when the mean squared error of 2,000 held-out sequences falls below 0.002, or when its time is
over.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rnnewton.lab.lstm_online import OnlineLearner
from rnnewton.newton.damping import Structural, Tikhonov
from rnnewton.newton.first_order import FirstOrder, FirstOrderSettings, Rule
from rnnewton.newton.optimizer import HessianFree
from rnnewton.newton.settings import ConjugateGradientSettings, HessianFreeSettings
from rnnewton.recurrent.architecture import Real
from rnnewton.recurrent.initialization import Normal, SparseNormal
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.tasks.marked_addition import SOLVED, MarkedAddition
from rnnewton.text.errors import UserError

RULES: dict[str, Rule] = {"sgd": "descent", "momentum": "momentum", "nesterov": "nesterov", "adam": "adam"}
OPTIMIZERS = ("hf", *RULES, "lstm-online")
RATES = {"sgd": 0.03, "momentum": 0.01, "nesterov": 0.01, "adam": 1e-3, "lstm-online": 0.1}
HELD_OUT = 2000  # sequences
RADIUS = 1.1  # spectral radius of the first recurrent weights of a cell without gates


@dataclass(frozen=True)
class AdditionSettings:
    """One run."""

    length: int = 50
    cell: str = "rnn"
    optimizer: str = "hf"
    seed: int = 0
    hidden: int = 60
    seconds: float = 1200.0
    rate: float | None = None  # first-order and online; None: see RATES
    sequences: int | None = None  # of a gradient; None: 1,000 for hf, 100 first-order, 1 online
    structural: float = 1e-3  # hf: mu
    tikhonov: float = 1e-3  # hf: lambda
    iterations: int = 60  # hf: most CG iterations of a step

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UserError(f"optimiser {self.optimizer!r} is not known: take one of {', '.join(OPTIMIZERS)}")
        if min(self.length, self.hidden, self.batch) < 1 or self.length < 2 or self.seconds <= 0:
            raise UserError(
                "marked addition needs a length of at least 2, and units, sequences and seconds above 0"
            )

    @property
    def batch(self) -> int:
        """Sequences of a gradient."""
        return self.sequences or {"hf": 1000, "lstm-online": 1}.get(self.optimizer, 100)


@dataclass(frozen=True)
class AdditionRun:
    """What became of one run."""

    settings: AdditionSettings
    solved: bool
    error: float  # held-out mean squared error at the end; always answering the mean scores 0.167
    best: float
    seconds: float
    updates: int
    sequences: int  # read for gradients
    curve: list[tuple[float, float]] = field(default_factory=list)  # (seconds, held-out error)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = asdict(self)
        return values.pop("settings") | values


Progress = Callable[[AdditionSettings, float, float, int], None]  # settings, seconds, error, updates


def model_for(settings: AdditionSettings) -> RecurrentModel:
    """The network: two inputs, one output, biases. Forget gates start at T / (T + 1), so that a share of what
    is stored survives the sequence; at a half, all of it would be gone after ten steps.
    """
    return RecurrentModel(
        cell=settings.cell,
        hidden=(settings.hidden,),
        inputs=Real(2),
        outputs=Real(1),
        loss="squared",
        bias=True,
        output_bias=True,
        forget_bias=math.log(settings.length) if settings.cell in ("lstm", "mlstm") else None,
        init=_initial(settings),
        seed=settings.seed,
    )


def _initial(settings: AdditionSettings) -> Normal | SparseNormal:
    """Without gates: about 15 recurrent weights a unit, of spectral radius 1.1, so that a signal neither
    dies nor
    grows over the first hundred steps (Martens & Sutskever, 2011)."""
    if settings.cell not in ("rnn", "mrnn"):
        return Normal(0.1)
    kept = min(1.0, 15 / settings.hidden)
    return SparseNormal(RADIUS / (kept * settings.hidden) ** 0.5, 1 - kept)


def run_addition(settings: AdditionSettings, progress: Progress | None = None) -> AdditionRun:
    """One run to its end."""
    task = MarkedAddition(settings.length, settings.seed)
    model = model_for(settings)
    held_out = task.held_out(HELD_OUT)
    update = _updater(settings, model, task)
    began = time.perf_counter()
    measured = began
    curve: list[tuple[float, float]] = []
    updates = 0
    while True:
        update(updates)
        updates += 1
        now = time.perf_counter()
        over = now - began >= settings.seconds
        # Small updates are many: they are scored about as long as a tenth of them took.
        if not over and settings.optimizer != "hf" and now - measured < 10 * _cost(curve, now - began):
            continue
        error = float(model.mean_loss([held_out]))
        measured = time.perf_counter()
        curve.append((measured - began, error))
        if progress is not None:
            progress(settings, measured - began, error, updates)
        if over or error < SOLVED or not math.isfinite(error):
            break
    return AdditionRun(
        settings,
        solved=error < SOLVED,
        error=error,
        best=min(error for _, error in curve),
        seconds=curve[-1][0],
        updates=updates,
        sequences=updates * settings.batch,
        curve=curve,
    )


def _cost(curve: list[tuple[float, float]], elapsed: float) -> float:
    """Seconds between two measurements, a tenth of which measuring may take."""
    return 0.1 if not curve else min(0.5, 0.01 * elapsed)


def _updater(
    settings: AdditionSettings, model: RecurrentModel, task: MarkedAddition
) -> Callable[[int], object]:
    """One update of the optimiser on fresh sequences."""
    if settings.optimizer == "hf":
        damping = Structural(settings.structural) + Tikhonov(settings.tikhonov)
        chosen = HessianFreeSettings(cg=ConjugateGradientSettings(iterations=settings.iterations))
        newton = HessianFree(model, damping=damping, settings=chosen, seed=settings.seed)
        return lambda index: newton.step([task.batch(settings.batch, index)])
    rate = RATES[settings.optimizer] if settings.rate is None else settings.rate
    if settings.optimizer == "lstm-online":
        online = OnlineLearner(model, rate, clip=1.0)

        def read(index: int) -> object:
            inputs, targets, at = task.batch(settings.batch, index)
            return online.read(inputs, targets, at=at)

        return read
    first = FirstOrder(model, settings=FirstOrderSettings(RULES[settings.optimizer], rate, clip=1.0))
    return lambda index: first.step([task.batch(settings.batch, index)])


def all_runs(base: AdditionSettings, grid: Mapping[str, Iterable[Any]]) -> Iterator[AdditionSettings]:
    """Every combination of the grid's values, the last of its names the fastest."""
    runs = [base]
    for name, values in grid.items():
        runs = [replace(run, **{name: value}) for run in runs for value in values]
    # Hessian-free has no learning rate, and so no run of its own for each.
    yield from (replace(run, rate=None) if run.optimizer == "hf" else run for run in runs)


def rows(runs: Iterable[AdditionRun]) -> list[list[str]]:
    """A table: one line per optimiser, cell, length and rate, with what its seeds came to."""
    groups: dict[tuple[Any, ...], list[AdditionRun]] = {}
    for run in runs:
        s = run.settings
        groups.setdefault((s.optimizer, s.cell, s.hidden, s.length, s.rate), []).append(run)
    table = [
        ["optimiser", "cell", "units", "length", "rate", "solved", "held-out error", "seconds", "sequences"]
    ]
    for (optimizer, cell, hidden, length, rate), group in groups.items():
        done = [run for run in group if run.solved] or group
        table.append(
            [
                optimizer,
                cell,
                str(hidden),
                str(length),
                "" if optimizer == "hf" else f"{RATES[optimizer] if rate is None else rate:g}",
                f"{sum(run.solved for run in group)} of {len(group)}",
                " ".join(f"{run.error:.4f}" for run in group),
                f"{_median(run.seconds for run in done):.0f}",
                f"{_median(run.sequences for run in done):,.0f}",
            ]
        )
    return table


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def figure(runs: Iterable[AdditionRun], path: Path) -> None:
    """Held-out error over seconds: a panel per length, a colour per optimiser and cell, a line per seed."""
    from matplotlib.figure import Figure

    runs = list(runs)
    lengths = sorted({run.settings.length for run in runs})
    names = list(dict.fromkeys((run.settings.optimizer, run.settings.cell) for run in runs))
    drawn = Figure(figsize=(4.5 * len(lengths), 4), layout="constrained")
    panels = drawn.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for axes, length in zip(panels, lengths):
        for index, (optimizer, cell) in enumerate(names):
            label = f"{optimizer}, {cell}"
            for run in runs:
                s = run.settings
                if (s.length, s.optimizer, s.cell) != (length, optimizer, cell):
                    continue
                seconds, errors = zip(*run.curve)
                axes.loglog(seconds, errors, color=f"C{index}", linewidth=1, label=label)
                label = None
        axes.axhline(SOLVED, color="black", linestyle=":", linewidth=1)
        axes.axhline(1 / 6, color="grey", linestyle=":", linewidth=1)
        axes.set_title(f"length {length}")
        axes.set_xlabel("seconds")
    panels[0].set_ylabel("held-out mean squared error")
    panels[0].legend()
    drawn.savefig(path)
