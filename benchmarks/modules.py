"""Hessian-free on plain modules against Adam tuned over five learning rates, at equal wall-clock.

Data are made here, from a seed. Every method starts from the same weights and has the same seconds, in
which its own bookkeeping counts and the scoring does not. Adam sees mini-batches (or all data, where
they are few), with a cosine decay over its time; its rate is chosen for each seed by the final loss: the
search itself is not charged to it.

    python benchmarks/modules.py --task curve-fit --seconds 15 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time as clock  # on one thread: wall-clock, as it would be on a quiet machine

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rnnewton as rn
from rnnewton.newton.settings import HessianFreeSettings

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
HESSIAN_FREE_BATCH = 1000


@dataclass(frozen=True)
class Task:
    module: nn.Module
    loss: nn.Module
    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    adam_batch: int


def curve_fit(seed: int) -> Task:
    """A wiggly function of one variable, 512 points; tanh 1-32-32-1."""
    g = torch.Generator().manual_seed(seed)
    phases = 2 * math.pi * torch.rand(4, generator=g)

    def wave(x: Tensor) -> Tensor:
        return sum(torch.sin((k + 1) * 2.0 * x + phases[k]) / (k + 1) for k in range(4))

    x, far = torch.linspace(-2, 2, 512)[:, None], -2 + 4 * torch.rand(512, 1, generator=g)
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    return Task(module, nn.MSELoss(), (x, wave(x)), (far, wave(far)), 512)


def curves(count: int, g: torch.Generator, side: int = 16) -> Tensor:
    """Images of smooth strokes: quadratic Bézier curves through three random points, after Hinton's
    "curves".
    """
    points = torch.rand(count, 3, 2, generator=g)
    t = torch.linspace(0, 1, 40)[None, :, None]
    path = (1 - t) ** 2 * points[:, :1] + 2 * t * (1 - t) * points[:, 1:2] + t**2 * points[:, 2:]
    grid = (torch.arange(side) + 0.5) / side
    dx = (path[:, :, None, 0] - grid) ** 2
    dy = (path[:, :, None, 1] - grid) ** 2
    distance = (dx[:, :, None, :] + dy[:, :, :, None]).amin(1)
    return torch.exp(-distance * side**2 / 0.8).flatten(1)


def autoencoder(seed: int) -> Task:
    """Curves through a bottleneck of 6: 256-200-100-50-25-6 and back, tanh, cross-entropy of pixels."""
    g = torch.Generator().manual_seed(seed)
    train, held_out = curves(4000, g), curves(1000, g)
    torch.manual_seed(seed)
    widths = [256, 200, 100, 50, 25, 6, 25, 50, 100, 200, 256]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Identity() if after == 6 else nn.Tanh()]
        nn.init.xavier_normal_(layers[-2].weight, gain=1.2)
    module = nn.Sequential(*layers[:-1])
    return Task(module, nn.BCEWithLogitsLoss(), (train, train), (held_out, held_out), 200)


def convolution(seed: int) -> Task:
    """How many curves are in the picture, one to four; a small convolutional net."""
    g = torch.Generator().manual_seed(seed)

    def pictures(count: int) -> tuple[Tensor, Tensor]:
        label = torch.randint(0, 4, (count,), generator=g)
        strokes = curves(4 * count, g).view(count, 4, 256)
        shown = (torch.arange(4) <= label[:, None]).float()
        image = (strokes * shown[:, :, None]).amax(1) + 0.1 * torch.randn(count, 256, generator=g)
        return image.view(count, 1, 16, 16), label

    train, held_out = pictures(6000), pictures(1500)
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 4),
    )  # fmt: skip
    return Task(module, nn.CrossEntropyLoss(), train, held_out, 100)


TASKS: dict[str, Callable[[int], Task]] = {
    "curve-fit": curve_fit,
    "autoencoder": autoencoder,
    "convolution": convolution,
}


@dataclass(frozen=True)
class Result:
    task: str
    seed: int
    method: str
    train: float
    held_out: float
    steps: int
    seconds: float


def scored(task: Task, module: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(task.loss(module(batch[0]), batch[1]))


def run_adam(task: Task, seconds: float, rate: float, seed: int) -> tuple[nn.Module, int, float]:
    """Cosine decay over the time it has: better than a constant rate on all three tasks."""
    module = copy.deepcopy(task.module)
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    batches = shuffled(task, seed, task.adam_batch)
    start, steps = clock(), 0
    while (spent := clock() - start) < seconds:
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * spent / seconds))
        x, y = next(batches)
        optimizer.zero_grad()
        task.loss(module(x), y).backward()
        optimizer.step()
        steps += 1
    return module, steps, clock() - start


def shuffled(task: Task, seed: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without replacement, epoch after epoch; all data where they are no more than one batch."""
    g = torch.Generator().manual_seed(seed)
    x, y = task.train
    while True:
        if size >= len(x):
            yield x, y
            continue
        for index in torch.randperm(len(x), generator=g).split(size):
            yield x[index], y[index]


def run_hessian_free(task: Task, seconds: float, kind: str, seed: int) -> tuple[nn.Module, int, float]:
    """Untuned. "defaults": as it comes, all data at once. "kronecker": the settings for small batches,
    whose examples are the gradient's and the curvature's; the averaged weights are handed over.

    The last step is not begun when it would end too late, so that the time is never exceeded by much.
    """
    module = copy.deepcopy(task.module)
    if kind == "defaults":
        optimizer = rn.HessianFree(module, task.loss)
        batches = shuffled(task, seed, len(task.train[0]))
    else:
        settings = HessianFreeSettings.small_batch()
        optimizer = rn.HessianFree(module, task.loss, preconditioner="kronecker", settings=settings)
        batches = shuffled(task, seed, HESSIAN_FREE_BATCH)
    start, steps, longest = clock(), 0, 0.0
    while (spent := clock() - start) + 0.5 * longest < seconds:
        batch = next(batches)
        optimizer.step(batch, batch)
        longest = clock() - start - spent
        steps += 1
    spent = clock() - start
    if optimizer.average is not None:
        optimizer.problem.write(optimizer.average)
    return module, steps, spent


def measure(name: str, seed: int, seconds: float, note: Callable[[str], None]) -> list[Result]:
    task = TASKS[name](seed)
    results: list[Result] = []

    def add(method: str, found: tuple[nn.Module, int, float]) -> None:
        module, steps, spent = found
        train, held_out = scored(task, module, task.train), scored(task, module, task.held_out)
        results.append(Result(name, seed, method, train, held_out, steps, spent))
        scores = f"train {train:.4g}, held out {held_out:.4g}"
        note(f"{name} seed {seed} {method}: {scores}, {steps} steps, {spent:.1f} s")

    for kind in ("defaults", "kronecker"):
        add(f"hessian-free, {kind}", run_hessian_free(task, seconds, kind, seed))
    for rate in RATES:
        add(f"adam {rate:g}", run_adam(task, seconds, rate, seed))
    return results


def shown(results: list[Result]) -> list[Result]:
    """Hessian-free as it is; Adam at the rate that is best in training, and at the one that is best on
    held-out data.
    """
    adam = [r for r in results if r.method.startswith("adam") and math.isfinite(r.train)]
    best = [min(adam, key=lambda r: r.train), min(adam, key=lambda r: r.held_out)]
    return [*(r for r in results if r.method.startswith("hessian")), *dict.fromkeys(best)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=15.0, help="of training, for every method")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", type=Path, help="where to write every run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(stderr=True, soft_wrap=True)
    results: list[Result] = []
    for name in TASKS if arguments.task == "all" else [arguments.task]:
        for seed in arguments.seeds:
            results += measure(name, seed, arguments.seconds, console.print)
    table = Table("task", "seed", "method", "training loss", "held out", "steps", "seconds")
    for name, seed in dict.fromkeys((r.task, r.seed) for r in results):
        here = [r for r in results if (r.task, r.seed) == (name, seed)]
        for r in shown(here):
            table.add_row(
                name,
                str(seed),
                r.method,
                f"{r.train:.3g}",
                f"{r.held_out:.3g}",
                str(r.steps),
                f"{r.seconds:.1f}",
            )
    Console(file=sys.stdout, width=120).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([vars(r) for r in results], indent=1))


if __name__ == "__main__":
    main()
