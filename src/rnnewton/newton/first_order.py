"""The first-order methods that chapter 3.1 names, behind the same `step(batch) -> StepReport`.

p: number of parameters. Weights and gradients are (p,). The rules are torch's own, on one flat parameter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rnnewton.newton.averaging import Average
from rnnewton.newton.chunks import Batch
from rnnewton.newton.problem import PassSettings, Problem, problem_of
from rnnewton.newton.report import StepReport
from rnnewton.newton.vector import norm

Rule = Literal["descent", "momentum", "nesterov", "adam"]
RULES: tuple[Rule, ...] = ("descent", "momentum", "nesterov", "adam")
_VERSION = 1


@dataclass(frozen=True)
class FirstOrderSettings:
    """Full, mini-batch or single-sequence descent are one rule: the batch that `step` is given makes the
    difference.
    """

    rule: Rule = "adam"
    rate: float = 2e-3
    momentum: float = 0.9  # classical and Nesterov
    betas: tuple[float, float] = (0.9, 0.999)  # Adam
    clip: float | None = None  # longest gradient; a longer one is shortened to it
    averaging: float | None = None
    passes: PassSettings = field(default_factory=PassSettings)
    epoch_characters: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is not known; the rules are {', '.join(RULES)}")
        if not self.rate > 0:
            raise ValueError(f"rate={self.rate} must be above 0")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip} must be above 0, or None")


class FirstOrder:
    """Gradient descent, classical or Nesterov momentum, or Adam."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        settings: FirstOrderSettings = FirstOrderSettings(),
    ) -> None:
        self.settings = settings
        self._problem = problem_of(module, loss, settings.passes)
        self._weights = nn.Parameter(self._problem.read())
        self._rule = _rule_of(self._weights, settings)
        self._average = None if settings.averaging is None else Average(settings.averaging)
        self._counters = StepReport(step=0, seconds=0.0, work_characters=0.0, characters=0)

    @property
    def problem(self) -> Problem:
        return self._problem

    @property
    def rate(self) -> float:
        return float(self._rule.param_groups[0]["lr"])

    @rate.setter
    def rate(self, rate: float) -> None:
        """Schedules set it between two steps."""
        self._rule.param_groups[0]["lr"] = rate

    @property
    def average(self) -> Tensor | None:
        return None if self._average is None else self._average.value

    def step(self, batch: Batch) -> StepReport:
        """One update. `loss_after` is not measured: that would cost a third of the update."""
        began = time.perf_counter()
        with torch.no_grad():
            self._weights.copy_(self._problem.read())  # whoever owns the module may have moved it
        point = self._problem.linearize(batch)
        loss, gradient = float(point.loss), point.gradient()
        length = float(norm(gradient))
        accepted = math.isfinite(loss) and math.isfinite(length)
        if accepted:
            self._update(gradient, length)
        characters = self._problem.characters(batch)
        before = self._counters
        work = (before.work_characters or 0.0) + characters
        epoch = self.settings.epoch_characters
        self._counters = replace(
            before,
            step=before.step + 1,
            seconds=before.seconds + time.perf_counter() - began,
            characters=(before.characters or 0) + characters,
            work=work / epoch if epoch else None,
            work_characters=work,
        )
        return replace(
            self._counters,
            step_seconds=time.perf_counter() - began,
            step_work_characters=float(characters),
            loss_before=loss,
            gradient_norm=length,
            gradient_scored=point.count,
            step_size=self.rate,
            accepted=accepted,
            products=0,
            losses=0,
            refused=None if accepted else "the loss or the gradient is not finite",
        )

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors and JSON scalars."""
        slots = self._rule.state.get(self._weights, {})
        counters = self._counters
        return {
            "version": _VERSION,
            "rule": self.settings.rule,
            "rate": self.rate,
            "slots": {k: v.clone() if isinstance(v, Tensor) else v for k, v in slots.items()},
            "average": None if self._average is None else self._average.state_dict(),
            "step": counters.step,
            "seconds": counters.seconds,
            "characters": counters.characters,
            "work": counters.work_characters,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != _VERSION or state.get("rule") != self.settings.rule:
            raise ValueError(
                f"the saved state is of the rule {state.get('rule')!r}, version "
                f"{state.get('version')!r}; this optimiser is {self.settings.rule!r}, version {_VERSION}"
            )
        self.rate = float(state["rate"])
        slots = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state["slots"].items()}
        if slots:
            self._rule.state[self._weights] = slots
        if self._average is not None and state["average"] is not None:
            self._average.load_state_dict(state["average"])
        epoch = self.settings.epoch_characters
        self._counters = replace(
            self._counters,
            step=int(state["step"]),
            seconds=float(state["seconds"]),
            characters=int(state["characters"]),
            work=float(state["work"]) / epoch if epoch else None,
            work_characters=float(state["work"]),
        )

    def _update(self, gradient: Tensor, length: float) -> None:
        clip = self.settings.clip
        shortened = gradient * (clip / length) if clip is not None and length > clip else gradient
        self._weights.grad = shortened.to(self._weights.dtype)
        self._rule.step()
        self._weights.grad = None
        moved = self._weights.detach().clone()
        self._problem.write(moved)
        if self._average is not None:
            self._average.add(moved)


def _rule_of(weights: nn.Parameter, settings: FirstOrderSettings) -> torch.optim.Optimizer:
    if settings.rule == "adam":
        return torch.optim.Adam([weights], lr=settings.rate, betas=settings.betas)
    momentum = 0.0 if settings.rule == "descent" else settings.momentum
    return torch.optim.SGD(
        [weights], lr=settings.rate, momentum=momentum, nesterov=settings.rule == "nesterov"
    )
