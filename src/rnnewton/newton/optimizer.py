"""`HessianFree`: the optimiser's face, a `torch.optim.Optimizer` for any module.

p: number of parameters. `average` is (p,).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from rnnewton.newton.averaging import Average
from rnnewton.newton.chunks import Batch
from rnnewton.newton.damping import Damping, Metric, Structural, Tikhonov, part_of, restored
from rnnewton.newton.descent import Tick
from rnnewton.newton.preconditioning import Identity, Kronecker, Preconditioner, preconditioner_of
from rnnewton.newton.problem import Problem, is_recurrent, problem_of
from rnnewton.newton.report import StepReport
from rnnewton.newton.settings import HessianFreeSettings
from rnnewton.newton.step import Memory, OuterStep

_VERSION = 1


class _Snapshot(NamedTuple):
    """What a step may change, as it was before."""

    memory: Memory
    weights: Tensor
    generator: Tensor
    preconditioner: dict[str, Any]
    average: dict[str, Any] | None


class HessianFree(torch.optim.Optimizer):
    """Hessian-free optimisation of a module (chapter 3).

    A `RecurrentModel` needs no loss; any other module is called as `loss(module(inputs), targets)`. Without
    `damping` a recurrent model takes what was measured for small batches (a Kronecker-factored preconditioner
    that is the metric of the damping too, few CG iterations, an averaged iterate), any other module Tikhonov
    damping. With `damping`, such as `rn.Structural(0.1) + rn.Tikhonov(0.01)`, the defaults are the thesis's.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        damping: Damping | None = None,
        preconditioner: Preconditioner | str | None = None,
        settings: HessianFreeSettings | None = None,
        seed: int = 0,
    ) -> None:
        _check_module(module)
        small = damping is None and is_recurrent(module)
        if settings is None:
            settings = HessianFreeSettings.small_batch() if small else HessianFreeSettings()
        if damping is None:
            metric = (
                (small and preconditioner is None)
                or preconditioner == "kronecker"
                or isinstance(preconditioner, Kronecker)
            )
            damping = Metric() if metric else Tikhonov(0.01)
        if preconditioner is None:
            preconditioner = Kronecker() if part_of(damping, Metric) else Identity()
        structural = part_of(damping, Structural)
        states = list(structural.states) if structural is not None and structural.states else None
        if structural is not None and states is None and not is_recurrent(module):
            raise ValueError(
                f"structural damping of a plain {type(module).__name__} needs to know what its hidden states "
                f"are: rn.Structural({structural.mu:g}, states=[...]) with the names of the submodules "
                f"whose outputs count"
            )
        self._problem = problem_of(module, loss, settings.passes, states)
        self._preconditioner = preconditioner_of(preconditioner)
        self._settings = settings
        self._memory = Memory(damping=damping, worked=damping)
        self._generator = torch.Generator().manual_seed(seed)
        self._average = None if settings.averaging is None else Average(settings.averaging)
        self._subscribers: list[Callable[[Tick], None]] = []
        self._sealed = False
        super().__init__([p for p in module.parameters() if p.requires_grad], {})
        self._sealed = True

    @property
    def problem(self) -> Problem:
        return self._problem

    @property
    def preconditioner(self) -> Preconditioner:
        return self._preconditioner

    @property
    def damping(self) -> Damping:
        """The damping of the next step."""
        return self._memory.damping

    @property
    def settings(self) -> HessianFreeSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: HessianFreeSettings) -> None:
        """A schedule may change anything between two steps but how the passes are computed."""
        if settings.passes != self._settings.passes:
            raise ValueError(
                "the settings of the passes are fixed when the optimiser is built; build a new one"
            )
        if settings.averaging != self._settings.averaging:
            raise ValueError("the averaging is fixed when the optimiser is built; build a new one")
        self._settings = settings

    @property
    def average(self) -> Tensor | None:
        """The averaged weights, or None without averaging or before the first step."""
        return None if self._average is None else self._average.value

    def subscribe(self, callback: Callable[[Tick], None]) -> Callable[[], None]:
        """Calls back after every CG iteration; returns what ends the subscription. It cannot change a
        result.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]: a batch, where torch has a closure
        self, gradient_batch: Batch, curvature_batch: Batch | None = None, iterations: int | None = None
    ) -> StepReport:
        """One outer step. `iterations` limits CG in this step only.

        A refused step, and one that is interrupted anywhere, leaves the weights as they were.
        """
        if callable(gradient_batch) and not isinstance(gradient_batch, (tuple, list, Tensor)):
            raise TypeError(
                "HessianFree.step takes a batch, not a closure: step((inputs, targets)), because it needs "
                "the loss, its gradient and curvature products at the same examples many times"
            )
        settings = self._settings
        if iterations is not None:
            settings = replace(settings, cg=replace(settings.cg, iterations=iterations))
        before = self._snapshot()
        step = OuterStep(
            self._problem, settings, self._memory, self._preconditioner, self._generator, self._notify
        )
        try:
            memory, report = step.run(gradient_batch, curvature_batch)
            if self._average is not None and report.accepted:
                self._average.add(self._problem.read())
            self._memory = memory
        except BaseException:
            self._roll_back(before)
            raise
        return report

    @contextmanager
    def averaged(self) -> Generator[None]:
        """The averaged weights in the module for as long as the block lasts."""
        if self.average is None:
            yield
            return
        kept = self._problem.read()
        self._problem.write(self.average)
        try:
            yield
        finally:
            self._problem.write(kept)

    def state_dict(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nested dicts and lists of tensors and JSON scalars: all that a resumed run needs beside the
        weights.
        """
        memory = self._memory
        return {
            "version": _VERSION,
            "damping": memory.damping.state(),
            "worked": memory.worked.state(),
            "last": None if memory.last is None else memory.last.clone(),
            "failures": memory.failures,
            "widening": memory.widening,
            "step": memory.step,
            "seconds": memory.seconds,
            "work": memory.work,
            "characters": memory.characters,
            "generator": self._generator.get_state(),
            "average": None if self._average is None else self._average.state_dict(),
            "preconditioner": self._preconditioner.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        state = state_dict
        if state.get("version") != _VERSION:
            raise ValueError(
                f"the optimiser's state has version {state.get('version')!r}, this program reads "
                f"{_VERSION}: it was saved by another optimiser or another release"
            )
        damping = restored(state["damping"])
        mine, theirs = [p.kind for p in self.damping.parts], [p.kind for p in damping.parts]
        if mine != theirs:
            raise ValueError(
                f"the saved state was damped by {'+'.join(theirs)}, this optimiser by {'+'.join(mine)}: "
                f"build it with the damping that it was saved with"
            )
        if (state["average"] is None) != (self._average is None):
            raise ValueError(
                "averaging is on in only one of the saved state and this optimiser: set `averaging` alike"
            )
        self._preconditioner.load_state_dict(state["preconditioner"])
        last = state["last"]
        self._memory = Memory(
            damping=damping,
            worked=restored(state["worked"]),
            last=None if last is None else last.clone(),
            failures=int(state["failures"]),
            widening=float(state["widening"]),
            step=int(state["step"]),
            seconds=float(state["seconds"]),
            work=float(state["work"]),
            characters=int(state["characters"]),
        )
        self._generator.set_state(state["generator"].cpu())
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_sealed", False):
            raise NotImplementedError(
                "HessianFree has no parameter groups: one quadratic holds for all weights. Freeze the others "
                "with requires_grad_(False) before building the optimiser"
            )
        super().add_param_group(param_group)

    def _notify(self, tick: Tick) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber(tick)

    def _snapshot(self) -> _Snapshot:
        average = None if self._average is None else copy.copy(self._average.__dict__)
        return _Snapshot(
            self._memory,
            self._problem.read(),
            self._generator.get_state(),
            self._preconditioner.state_dict(),
            average,
        )

    def _roll_back(self, before: _Snapshot) -> None:
        self._memory = before.memory
        self._problem.write(before.weights)
        self._generator.set_state(before.generator)
        self._preconditioner.load_state_dict(before.preconditioner)
        if self._average is not None and before.average is not None:
            self._average.__dict__.update(before.average)


def _check_module(module: Any) -> None:
    if isinstance(module, nn.Module):
        return
    _refuse(module)


def _refuse(module: Any) -> NoReturn:
    raise TypeError(
        f"HessianFree takes the module itself, HessianFree(module, loss), and not its parameters; "
        f"got {type(module).__name__}. It runs the module forward and differentiates along directions"
    )
