"""Online LSTM learning of a text (chapter 2.2): streams read side by side from its beginning, weights
moving at every character.

T: characters of a block, B: streams (1 in the thesis). Blocks only bound what is read at once; they change
no result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rnnewton.lab.learner import Task
from rnnewton.lab.lstm_online import OnlineLearner
from rnnewton.newton.averaging import Average
from rnnewton.newton.descent import Tick
from rnnewton.newton.report import StepReport
from rnnewton.text.blocks import Streams


class OnlineTextLearner:
    """One step is `report_every` characters of every stream; interrupted in it, all is as it was before."""

    def __init__(self, task: Task, subscriber: Callable[[Tick], None]) -> None:
        settings = task.settings
        self._task, self._notify = task, subscriber
        self._problem = task.problem()
        self._learner = OnlineLearner(
            task.model, settings.optimizer.learning_rate or 0.0, settings.optimizer.clip
        )
        every = settings.reports.report_every or 1
        length, width = min(task.length, every), min(settings.optimizer.batch or 1, len(task.training) - 1)
        self._streams = Streams(task.training, length, width)
        self._blocks = max(1, round(every / length))
        self._average = Average(settings.optimizer.average) if settings.optimizer.average else None
        self._state: Any = None
        self._steps, self._block, self._characters = 0, 0, 0

    def step(self) -> StepReport:
        before, weights = self.state_dict(), self.weights
        began = time.perf_counter()
        try:
            nats, scored = 0.0, 0
            for index in range(1, self._blocks + 1):
                inputs, targets = self._streams.block(self._block, self._task.device)
                sum_of_block, self._state = self._learner.read(inputs, targets, self._state)
                self._block = (self._block + 1) % len(self._streams)
                if self._block == 0:  # the streams begin anew
                    self._state = None
                nats, scored = nats + sum_of_block, scored + inputs.numel()
                seconds = time.perf_counter() - began
                self._notify(Tick(self._steps + 1, index, self._blocks, math.nan, seconds))
        except BaseException:
            self.load_state_dict(before, weights)
            raise
        if self._average is not None:
            self._average.add(self.weights)
        self._steps += 1
        self._characters += scored
        return StepReport(
            step=self._steps,
            seconds=time.perf_counter() - began,
            work=self._characters / max(len(self._task.training) - 1, 1),
            characters=self._characters,
            work_characters=float(self._characters),
            loss_before=nats / scored,
            accepted=math.isfinite(nats),
            gradient_scored=scored,
        )

    @property
    def weights(self) -> Tensor:
        return self._problem.read()

    @property
    def average(self) -> Tensor | None:
        return None if self._average is None else self._average.value

    def state_dict(self) -> dict[str, Any]:
        state = None if self._state is None else [[part.clone() for part in layer] for layer in self._state]
        return {
            "traces": {key: value.clone() for key, value in self._learner.state_dict().items()},
            "state": state,
            "average": None if self._average is None else self._average.state_dict(),
            "steps": self._steps,
            "block": self._block,
            "characters": self._characters,
        }

    def load_state_dict(self, state: dict[str, Any], weights: Tensor) -> None:
        self._problem.write(weights)
        zero = self._task.model.zero_state(self._streams.width)
        device = self._task.device
        self._learner.load_state_dict({key: value.to(device) for key, value in state["traces"].items()})
        self._state = None
        if state["state"] is not None:
            layers = zip(zero, state["state"], strict=True)
            self._state = [type(empty)(*(part.to(device) for part in layer)) for empty, layer in layers]
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        self._steps, self._block = int(state["steps"]), int(state["block"])
        self._characters = int(state["characters"])
