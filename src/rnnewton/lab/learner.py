"""What the outer loop sees of an optimiser: one step, which is one line of metrics, and all that must
survive a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rnnewton.lab.regularization import RegularizedModel
from rnnewton.lab.settings import Settings
from rnnewton.newton.descent import Tick
from rnnewton.newton.problem import LinearizableProblem, PassSettings
from rnnewton.newton.report import StepReport
from rnnewton.recurrent.model import RecurrentModel
from rnnewton.text.alphabet import Ids


class Learner(Protocol):
    """Trains a model in place."""

    def step(self) -> StepReport:
        """One outer step, or the updates of one line of metrics. Interrupted, it leaves all as it was
        before.
        """
        ...

    @property
    def weights(self) -> Tensor:
        """The present weights, flat: a copy."""
        ...

    @property
    def average(self) -> Tensor | None:
        """The averaged weights, flat, where they are kept."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything beside the weights that the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any], weights: Tensor) -> None: ...


@dataclass(frozen=True)
class Task:
    """What there is to learn: a model, a text, and how."""

    model: RecurrentModel
    training: Ids
    settings: Settings  # resolved: nothing that the learner needs is None
    frequencies: Tensor | None = None  # of the symbols in the training text

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def length(self) -> int:
        """T, or less where the text is shorter than one sequence."""
        return min(self.settings.sequences.length or 1, len(self.training) - 1)

    def passes(self) -> PassSettings:
        machine = self.settings.machine
        return PassSettings(memory=machine.memory or "stored", precision=precision_of(machine.precision))

    def problem(self) -> LinearizableProblem:
        """The plain model, without regularisation: what is scored and handed over."""
        return LinearizableProblem(self.model, self.passes())

    def regularized(self) -> RegularizedModel | None:
        settings = self.settings.regularization
        if not (settings.weight_decay or settings.weight_noise or settings.dropout):
            return None
        return RegularizedModel(self.model, settings, self.settings.model.seed + 1)


def precision_of(name: str) -> str | None:
    """fp64 is the parameters' own type, everything else an arithmetic."""
    return None if name in ("fp32", "fp64") else name


def learner_of(task: Task, subscriber: Callable[[Tick], None]) -> Learner:
    """The learner that the settings name; `subscriber` hears of every CG iteration and changes nothing."""
    name = task.settings.optimizer.optimizer
    if name == "hf":
        from rnnewton.lab.hessian_free import HessianFreeLearner

        return HessianFreeLearner(task, subscriber)
    if name == "lstm-online":
        from rnnewton.lab.online import OnlineTextLearner

        return OnlineTextLearner(task, subscriber)
    from rnnewton.lab.first_order import FirstOrderLearner

    return FirstOrderLearner(task, subscriber)
