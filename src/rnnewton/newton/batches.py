"""Which examples, and how many: sampling without replacement over an epoch, and sizes that grow with
progress.

N: examples of the whole set (sequences of a text), counted 0 … N−1. What an example is, the lab knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

_STRIDE = 1_000_003  # keeps the seeds of epochs and of subsets apart


@dataclass(frozen=True)
class Sizes:
    """One step's batch: n_j and n_c in characters, and the limit of CG."""

    gradient: int
    curvature: int
    iterations: int


@dataclass(frozen=True)
class BatchSchedule:
    """Sizes as a function of work, and of the gradient's noise where that is asked for.

    "fixed": `sizes`. "geometric": both batches grow by `factor` every `every` units of work. "proportional":
    the gradient batch has `per_work` characters per unit of work done, once that is more than the first one.
    "norm": both grow by `factor` after a step whose gradient was noisier than `noise` (the norm test:
    estimated variance of the mean gradient over its squared norm; Byrd et al. 2012). All end at `largest`
    characters of gradient batch, where CG gets `last_iterations`.
    """

    sizes: Sizes
    growth: Literal["fixed", "geometric", "proportional", "norm"] = "fixed"
    factor: float = 2.0
    every: float = 4.0
    per_work: float = 0.0
    noise: float = 0.25
    largest: int | None = None
    last_iterations: int | None = None  # CG's limit grows towards it, geometrically, as the batches do
    least_curvature: int = 0  # curvature batches smaller than this are unstable

    def __post_init__(self) -> None:
        s = self.sizes
        if min(s.gradient, s.curvature, s.iterations) < 1 or s.curvature > s.gradient:
            raise ValueError(
                f"the gradient batch ({s.gradient} characters) must hold the curvature batch "
                f"({s.curvature}), and CG needs at least one iteration ({s.iterations})"
            )
        if self.growth not in ("fixed", "geometric", "proportional", "norm"):
            raise ValueError(f"growth={self.growth!r} must be 'fixed', 'geometric', 'proportional' or 'norm'")
        if self.factor < 1 or self.every <= 0:
            raise ValueError(f"factor={self.factor} must be at least 1 and every={self.every} above 0")
        if self.largest is not None and self.largest < s.gradient:
            raise ValueError(f"largest={self.largest} is less than the first gradient batch, {s.gradient}")

    def at(self, work: float, growths: int = 0) -> Sizes:
        """The sizes after so much work, or after so many growths that the norm test asked for."""
        first = self.sizes
        ceiling = self.largest / first.gradient if self.largest is not None else math.inf
        grown = min(self._grown(work, growths), ceiling)
        gradient = round(first.gradient * grown)
        curvature = max(1, round(first.curvature * grown), self.least_curvature)
        return Sizes(gradient, min(curvature, gradient), self._iterations(grown, ceiling))

    def _grown(self, work: float, growths: int) -> float:
        if self.growth == "fixed":
            return 1.0
        if self.growth == "proportional":
            return max(1.0, self.per_work * work / self.sizes.gradient)
        times = math.floor(work / self.every) if self.growth == "geometric" else growths
        # Growth without a limit is the whole text soon: the exponent is kept where floats are.
        return self.factor ** min(times, 200)

    def asks_for_more(self, gradient_noise: float | None) -> bool:
        """The norm test on a step's report."""
        return self.growth == "norm" and gradient_noise is not None and gradient_noise > self.noise

    def _iterations(self, grown: float, ceiling: float) -> int:
        first, last = self.sizes.iterations, self.last_iterations
        if last is None or not math.isfinite(ceiling) or ceiling <= 1:
            return first
        return round(first * (last / first) ** (math.log(grown) / math.log(ceiling)))


class EpochSampler:
    """Indices without replacement over an epoch. All of its state is three integers."""

    def __init__(self, count: int, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"there are {count} examples to sample from; at least one is needed")
        self.count = count
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self.draws = 0
        self._carried: list[int] = []  # taken early, across the last border: they wait at this epoch's end
        self._order = self._permutation()

    def take(self, count: int) -> Tensor:
        """The next `count` indices, (count,) int64; all of them, in order, when that many are asked for.

        A batch across the border of two epochs holds no example twice.
        """
        if count < 1:
            raise ValueError(f"a batch of {count} examples was asked for; at least one is needed")
        if count >= self.count:
            return torch.arange(self.count)
        taken = self._order[self.position : self.position + count]
        self.position += len(taken)
        missing = count - len(taken)
        if missing:
            self.epoch += 1
            self._carried = taken.tolist()
            self._order = self._permutation()
            taken = torch.cat([taken, self._order[:missing]])
            self.position = missing
        return taken

    def subset(self, indices: Tensor, count: int) -> Tensor:
        """`count` of the given indices at random: the curvature batch inside the gradient batch."""
        self.draws += 1
        if count >= len(indices):
            return indices
        generator = torch.Generator().manual_seed(self.seed * _STRIDE + 2 * self.draws + 1)
        return indices[torch.randperm(len(indices), generator=generator)[: max(count, 1)]]

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "draws": self.draws,
            "carried": list(self._carried),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["count"] != self.count:
            raise ValueError(
                f"the saved sampler drew from {state['count']} examples, this one has {self.count}: "
                f"another text?"
            )
        self.seed, self.epoch = int(state["seed"]), int(state["epoch"])
        self.position, self.draws = int(state["position"]), int(state["draws"])
        self._carried = [int(i) for i in state["carried"]]
        self._order = self._permutation()

    def _permutation(self) -> Tensor:
        """This epoch's order, from seed and epoch alone; what its first batch holds already goes to the
        end.
        """
        generator = torch.Generator().manual_seed(self.seed * _STRIDE + 2 * self.epoch)
        order = torch.randperm(self.count, generator=generator)
        if not self._carried:
            return order
        early = torch.isin(order, torch.tensor(self._carried))
        return torch.cat([order[~early], order[early]])
