"""The first-order baselines on a text: gradient descent, momentum, Nesterov's momentum and Adam, with
clipping.

T: time steps of an update, B: sequences of an update. Weights are one flat vector (p,).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn

from rnnewton.lab.learner import Task
from rnnewton.newton.batches import EpochSampler
from rnnewton.newton.descent import Tick
from rnnewton.newton.first_order import FirstOrder, FirstOrderSettings, Rule
from rnnewton.newton.report import StepReport
from rnnewton.text.blocks import Sequences, Streams

RULES: dict[str, Rule] = {"sgd": "descent", "momentum": "momentum", "nesterov": "nesterov", "adam": "adam"}


class FirstOrderLearner:
    """One step is `report_every` updates; interrupted in the middle of it, all is as it was before."""

    def __init__(self, task: Task, subscriber: Callable[[Tick], None]) -> None:
        self._task = task
        self._notify = subscriber
        self._regularized = task.regularized()
        self._carrier = Carrier(self._regularized or task.model)
        self._batches: Batches = Carried(task) if task.settings.sequences.carry else Drawn(task)
        self._optimizer = FirstOrder(self._carrier, settings=_settings(task))
        self._every = task.settings.reports.report_every or 1
        self._steps, self._updates = 0, 0

    def step(self) -> StepReport:
        before, weights = self.state_dict(), self.weights
        try:
            reports = list(self._update_many())
        except BaseException:
            self.load_state_dict(before, weights)
            raise
        self._steps += 1
        scored = sum(report.gradient_scored or 0 for report in reports)
        losses = sum((report.loss_before or 0.0) * (report.gradient_scored or 0) for report in reports)
        refused = [report.refused for report in reports if report.refused]
        return replace(
            reports[-1],
            step=self._steps,
            loss_before=losses / scored,
            gradient_norm=sum(report.gradient_norm or 0.0 for report in reports) / len(reports),
            accepted=not refused,
            refused=refused[0] if refused else None,
        )

    def _update_many(self) -> Iterator[StepReport]:
        began = time.perf_counter()
        for index in range(1, self._every + 1):
            chunk = self._batches.take()
            if self._regularized is not None:
                self._regularized.redraw()
            self._optimizer.rate = self._rate()
            yield self._optimizer.step(chunk)
            self._updates += 1
            self._batches.carry(self._carrier.last_states())
            self._notify(Tick(self._steps + 1, index, self._every, math.nan, time.perf_counter() - began))

    def _rate(self) -> float:
        settings = self._task.settings
        rate = settings.optimizer.learning_rate or 0.0
        if settings.optimizer.schedule == "constant":
            return rate
        total = max((settings.limits.steps or 1) * self._every, 1)
        return max(0.5 * rate * (1 + math.cos(math.pi * min(self._updates / total, 1.0))), 1e-3 * rate)

    @property
    def weights(self) -> Tensor:
        return self._optimizer.problem.read()

    @property
    def average(self) -> Tensor | None:
        return self._optimizer.average

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self._optimizer.state_dict(),
            "batches": self._batches.state_dict(),
            "regularized": None if self._regularized is None else self._regularized.state_dict(),
            "steps": self._steps,
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any], weights: Tensor) -> None:
        self._optimizer.problem.write(weights)
        self._optimizer.load_state_dict(state["optimizer"])
        self._batches.load_state_dict(state["batches"])
        if self._regularized is not None:
            self._regularized.load_state_dict(state["regularized"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])


def _settings(task: Task) -> FirstOrderSettings:
    settings = task.settings.optimizer
    if settings.learning_rate is None:
        raise ValueError("the learning rate is not chosen yet: see choices.py")
    return FirstOrderSettings(
        rule=RULES[settings.optimizer],
        rate=settings.learning_rate,
        momentum=settings.momentum,
        clip=settings.clip or None,
        averaging=settings.average or None,
        passes=task.passes(),
        epoch_characters=max(len(task.training) - 1, 1),
    )


class Carrier(nn.Module):
    """A model that remembers in which states its last linearisation ended."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner: Any = model
        self._last: Any = None

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.inner.parameters(recurse)

    def linearize(self, *arguments: Any, **options: Any) -> Any:
        self._last = self.inner.linearize(*arguments, **options)
        return self._last

    def mean_loss(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.mean_loss(*arguments, **options)

    def last_states(self) -> Any:
        last, self._last = self._last, None  # so that its activations do not outlive the update
        return last.last_states[0]


class Batches(Protocol):
    """Where updates take their sequences from."""

    def take(self) -> tuple[Any, ...]: ...
    def carry(self, states: Any) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Drawn:
    """Sequences drawn at random without replacement, each from state 0."""

    def __init__(self, task: Task) -> None:
        self._device = task.device
        self._sequences = Sequences(task.training, task.length)
        self._batch = min(task.settings.optimizer.batch or 1, len(self._sequences))
        self._order = EpochSampler(len(self._sequences), task.settings.model.seed)

    def take(self) -> tuple[Any, ...]:
        return self._sequences.block(self._order.take(self._batch).numpy(), self._device)

    def carry(self, states: Any) -> None:
        """Nothing is carried."""

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)


class Carried:
    """Parallel streams through the text; the state goes on from block to block, and is zero at its
    beginning.
    """

    def __init__(self, task: Task) -> None:
        self._device = task.device
        width = min(task.settings.optimizer.batch or 1, len(task.training) - 1)
        self._streams = Streams(task.training, task.length, width)
        self._zero = task.model.zero_state(width)
        self._position = 0
        self._state: list[Any] = self._zero

    def take(self) -> tuple[Any, ...]:
        inputs, targets = self._streams.block(self._position, self._device)
        return inputs, targets, "every", self._state

    def carry(self, states: Any) -> None:
        self._position = (self._position + 1) % len(self._streams)
        self._state = states if self._position else self._zero

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "state": [[part.clone() for part in layer] for layer in self._state],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = int(state["position"])
        layers = zip(self._zero, state["state"], strict=True)
        self._state = [type(zero)(*(part.to(zero.out) for part in layer)) for zero, layer in layers]
