"""Hessian-free on one nn.LSTM character model, side by side with the public PyTorch implementation
(BackPACK products).

The peer is not part of this project: clone github.com/ltatzel/PyTorchHessianFree, install
backpack-for-pytorch, and give the clone's folder. Same text (Python's own help topics), same weights,
same batch for everything, one thread; the loss is that of the batch, against CG iterations
and against seconds.

    python benchmarks/modules_against_peer.py --peer FOLDER --seconds 60
"""

from __future__ import annotations

import argparse
import copy
import json
import pydoc_data.topics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time as clock  # on one thread: wall-clock, as it would be on a quiet machine

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import rnnewton as rn
from rnnewton.newton.settings import ConjugateGradientSettings, FinalStepSettings, HessianFreeSettings


class Characters(nn.Module):
    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.out = nn.Linear(width, symbols)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(ids))[0]).transpose(1, 2)


def text(sequences: int, length: int, seed: int) -> tuple[Tensor, Tensor, int]:
    """Sequences from random places, (B, T), their next characters, and the number of symbols."""
    whole = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    alphabet = {symbol: i for i, symbol in enumerate(sorted(set(whole)))}
    ids = torch.tensor([alphabet[symbol] for symbol in whole])
    starts = torch.randint(
        0, len(ids) - length - 1, (sequences,), generator=torch.Generator().manual_seed(seed)
    )
    cut = torch.stack([ids[s : s + length + 1] for s in starts])
    return cut[:, :-1], cut[:, 1:], len(alphabet)


@dataclass(frozen=True)
class Point:
    iterations: int  # of CG, so far
    seconds: float
    loss: float  # after the step


Step = Callable[[], tuple[int, float]]  # one outer step: CG iterations, loss after it


def follow(step: Step, seconds: float) -> list[Point]:
    points: list[Point] = []
    start, iterations = clock(), 0
    while clock() - start < seconds:
        count, loss = step()
        iterations += count
        points.append(Point(iterations, clock() - start, loss))
    return points


def ours(model: nn.Module, batch: tuple[Tensor, Tensor], lam: float, limit: int, kronecker: bool) -> Step:
    """`kronecker` is this package's own way; without it, the peer's algorithm with its settings."""
    settings = HessianFreeSettings(
        cg=ConjugateGradientSettings(iterations=limit, warm_start=0.95),
        final=FinalStepSettings(iterate="backtracking", rule="armijo"),
    )
    if kronecker:
        optimizer = rn.HessianFree(
            model, nn.CrossEntropyLoss(), preconditioner="kronecker", settings=settings
        )
    else:
        optimizer = rn.HessianFree(model, nn.CrossEntropyLoss(), damping=rn.Tikhonov(lam), settings=settings)

    def step() -> tuple[int, float]:
        report = optimizer.step(batch, batch)
        return report.cg_iterations, report.loss_after

    return step


def theirs(model: nn.Module, batch: tuple[Tensor, Tensor], lam: float, limit: int) -> Step:
    from hessianfree.optimizer import HessianFree as Peer  # pyright: ignore[reportMissingImports]

    loss_function = nn.CrossEntropyLoss()
    optimizer = Peer(model.parameters(), damping=lam, cg_max_iter=limit)

    def forward() -> tuple[Tensor, Tensor]:
        outputs = model(batch[0])
        return loss_function(outputs, batch[1]), outputs

    def step() -> tuple[int, float]:
        loss = optimizer.step(forward)
        return optimizer.state["num_cg_iters"][-1], float(loss)

    return step


def at(points: list[Point], limit: float, of: Callable[[Point], float]) -> str:
    """The loss by the last step that ended within the limit; a dash where the run did not get so far."""
    done = [p for p in points if of(p) <= limit]
    return f"{done[-1].loss:.3f}" if done and of(points[-1]) >= 0.9 * limit else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="folder of a clone of PyTorchHessianFree")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--limit", type=int, default=50, help="CG iterations of a step")
    parser.add_argument("--lambdas", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    inputs, targets, symbols = text(arguments.sequences, arguments.length, arguments.seed)
    batch = (inputs, targets)
    torch.manual_seed(arguments.seed)
    model = Characters(symbols, arguments.width)
    contenders: dict[str, Callable[[nn.Module], Step]] = {}
    for lam in arguments.lambdas:
        if arguments.peer is not None:
            contenders[f"peer, lambda {lam:g}"] = lambda m, lam=lam: theirs(m, batch, lam, arguments.limit)
        contenders[f"rnnewton, lambda {lam:g}"] = lambda m, lam=lam: ours(
            m, batch, lam, arguments.limit, False
        )
    contenders["rnnewton, Kronecker"] = lambda m: ours(m, batch, 0.0, arguments.limit, True)
    if arguments.peer is not None:
        sys.path.insert(0, str(arguments.peer))
    console, runs = Console(stderr=True, soft_wrap=True), {}
    for name, build in contenders.items():
        runs[name] = follow(build(copy.deepcopy(model)), arguments.seconds)
        last = runs[name][-1]
        console.print(f"{name}: {len(runs[name])} steps, {last.iterations} iterations, loss {last.loss:.4f}")
    limits, times = (100, 200, 400, 800), [arguments.seconds * share for share in (0.25, 0.5, 1.0)]
    table = Table(
        "", *(f"{n} it." for n in limits), *(f"{t:g} s" for t in times), "s / step", "ms / iteration",
        title=f"loss (nats) of an LSTM-{arguments.width} on {inputs.numel()} characters",
    )  # fmt: skip
    for name, points in runs.items():
        last = points[-1]
        table.add_row(
            name,
            *(at(points, n, lambda p: p.iterations) for n in limits),
            *(at(points, t, lambda p: p.seconds) for t in times),
            f"{last.seconds / len(points):.2f}",
            f"{1000 * last.seconds / last.iterations:.0f}",
        )
    Console(file=sys.stdout, width=120).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({k: [vars(p) for p in v] for k, v in runs.items()}, indent=1))


if __name__ == "__main__":
    main()
