"""What one outer step did: a frozen value, whose dictionary is one line of `metrics.jsonl`."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

PRODUCT = 4 / 3  # of a gradient, per character
LOSS = 1 / 3
SLOPE = 2 / 3  # a gradient whose forward pass is there already


@dataclass(frozen=True)
class TracePoint:
    """One CG iteration: the quadratic, and the network's own loss where it was measured."""

    iteration: int
    q: float
    alpha: float
    f: float | None = None
    p: float | None = None
    mu: float | None = None
    epsilon_stalled: bool = False


@dataclass(frozen=True)
class StepReport:
    """`step`, `seconds`, `work` and `characters` are totals of the run; the rest is of this step. None: not
    measured.
    """

    step: int
    seconds: float
    work: float | None = None  # epochs of gradient over the training text
    characters: int | None = None  # read for gradients
    loss_before: float | None = None  # nats, on the gradient batch
    loss_after: float | None = None
    validation_bits: float | None = None
    mu: float | None = None  # the damping that the step was computed with
    lambda_: float | None = None
    p: float | None = None
    cg_iterations: int | None = None
    cg_reason: str | None = None
    step_size: float | None = None
    accepted: bool | None = None
    products: int | None = None
    # what else is worth seeing
    work_characters: float | None = None  # work in characters of gradient arithmetic
    step_seconds: float | None = None
    step_work_characters: float | None = None
    kappa: float | None = None
    q: float | None = None
    gradient_norm: float | None = None
    gradient_noise: float | None = None  # estimated variance of the gradient over its squared norm
    gradient_scored: int | None = None
    curvature_scored: int | None = None
    losses: int | None = None  # evaluations of the loss
    seconds_of: dict[str, float] = field(default_factory=dict[str, float])
    products_of: dict[str, int] = field(default_factory=dict[str, int])
    refused: str | None = None
    recovery: str | None = None
    trace: tuple[TracePoint, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON: `lambda` for `lambda_`, null for what is not finite."""
        result = {f.name.rstrip("_"): _plain(getattr(self, f.name)) for f in fields(self)}
        if self.trace is not None:
            result["trace"] = [
                {f.name: _plain(getattr(point, f.name)) for f in fields(point)} for point in self.trace
            ]
        return result


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Meter:
    """Counts what a step spends: seconds of each part, products, losses, characters of gradient
    arithmetic.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.work = 0.0
        self.losses = 0
        self.seconds_of: dict[str, float] = {}
        self.products_of: dict[str, int] = {}

    def gradient(self, characters: int) -> None:
        self.work += characters

    def slope(self, characters: int) -> None:
        self.work += SLOPE * characters

    def products(self, part: str, count: int, characters: int) -> None:
        self.products_of[part] = self.products_of.get(part, 0) + count
        self.work += PRODUCT * count * characters

    def forward(self, characters: int) -> None:
        self.work += LOSS * characters

    def loss(self, characters: int) -> None:
        self.losses += 1
        self.forward(characters)

    def other(self, share: float, characters: int) -> None:
        self.work += share * characters

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_of[name] = self.seconds_of.get(name, 0.0) + time.perf_counter() - started
