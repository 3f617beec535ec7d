"""The outer loop: step, score, write; until a limit, early stopping or the user ends it.

The order on the disk makes a kill harmless at any moment: first the line of metrics, then the checkpoint of
its step, whole or not at all. What was done after the last checkpoint is done again when the run goes on,
to the bit.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from rnnewton.lab.checkpoint import Checkpoint, Summary, read_state
from rnnewton.lab.learner import Learner, Task, learner_of
from rnnewton.lab.run_folder import RunFolder
from rnnewton.lab.scoring import Lanes
from rnnewton.newton.descent import Tick
from rnnewton.newton.report import StepReport
from rnnewton.text.errors import UserError

VALIDATION_SHARE = 0.1  # of the work that validation may cost where its interval is not given
_TIMES = ("seconds_of", "step_seconds")  # beside `seconds`, metrics hold only what is the same each time
_DETAILS = ("trace", "products_of", "step", "seconds", "validation_bits")


class Observer(Protocol):
    """Watches a run. Nothing that it does changes a result."""

    def ticked(self, tick: Tick) -> None: ...
    def stepped(self, record: dict[str, Any]) -> None: ...


class CannotWrite(Exception):
    """The run folder cannot be written any more; what is in it is good."""


class Interrupted(Exception):
    """The user stopped the run; its last step is in a checkpoint."""


@dataclass
class Tally:
    """How far a run is: in every checkpoint, and nothing else decides when it ends."""

    step: int = 0
    seconds: float = 0.0
    work: float = 0.0
    validated_at: float = 0.0  # work at the last validation
    best_bits: float | None = None
    best_step: int | None = None
    since_best: int = 0  # validations


@dataclass(frozen=True)
class Scored:
    """The better of the last and the averaged weights on the validation text."""

    bits: float
    weights: Tensor
    last: float
    average: float | None


class Trainer:
    """One run in one process, from its newest checkpoint to its end."""

    def __init__(self, run: RunFolder, task: Task, validation: Lanes | None, observer: Observer) -> None:
        self.run, self.task, self.observer = run, task, observer
        self.tally = Tally()
        self._validation = validation
        self._stop = threading.Event()
        # A second Ctrl-C: what is in memory may be half done, what is on the disk is not.
        self._hurried = False
        self.learner: Learner = learner_of(task, self._ticked)
        self._problem = task.problem()
        self._saved: int | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, as if nothing had happened since."""
        state = read_state(checkpoint.path)
        state = on_device(state, self.task.device)
        self.learner.load_state_dict(state["learner"], state["weights"])
        self.tally = Tally(**state["tally"])
        self.run.cut_metrics(self.tally.step)
        self._saved = self.tally.step

    def train(self) -> str:
        """Train to the end; the reason is `steps`, `seconds` or `patience`."""
        with self._interruptible():
            try:
                if self._saved is None:
                    self.run.cut_metrics(0)
                    self._save(self.learner.weights)
                while (reason := self.ended()) is None:
                    self._step()
                if self._saved != self.tally.step:
                    self._save(self.learner.weights)
                return reason
            except KeyboardInterrupt:
                if not self._hurried and self._saved not in (None, self.tally.step):
                    self._save(self.learner.weights)
                raise Interrupted from None

    def ended(self) -> str | None:
        limits, tally = self.task.settings.limits, self.tally
        if limits.steps is not None and tally.step >= limits.steps:
            return "steps"
        if limits.seconds is not None and tally.seconds >= limits.seconds:
            return "seconds"
        if limits.patience is not None and tally.since_best >= limits.patience:
            return "patience"
        return None

    def _step(self) -> None:
        """One step, its score where one is due, its line of metrics, its checkpoint."""
        started, before = time.perf_counter(), self.tally
        report = self.learner.step()
        tally = Tally(**asdict(before))
        tally.step, tally.work = before.step + 1, report.work or 0.0
        tally.seconds = before.seconds + time.perf_counter() - started
        self.tally = tally
        scored = self._validated() if self._validation_due() else None
        best = scored is not None and self._count(scored)
        tally.seconds = before.seconds + time.perf_counter() - started
        record = _record(report, tally, scored)
        due = tally.step % self.task.settings.reports.checkpoint_every == 0
        with writing(self.run, self._saved):
            self.run.append(record)
            if best or due or self.ended() is not None:
                self._save(self.learner.weights if scored is None else scored.weights)
        tally.seconds = before.seconds + time.perf_counter() - started
        self.observer.stepped(record)
        self._check_stop()

    def _validation_due(self) -> bool:
        if self._validation is None:
            return False
        every = self.task.settings.reports.validate_every
        if self.ended() is not None:
            return True
        if every is not None:
            return self.tally.step % every == 0
        candidates = 1 if self.learner.average is None else 2
        cost = candidates * self._validation.characters / 3 / max(len(self.task.training) - 1, 1)
        return self.tally.work - self.tally.validated_at >= cost / VALIDATION_SHARE

    def _validated(self) -> Scored:
        assert self._validation is not None
        self.tally.validated_at = self.tally.work
        weights, averaged = self.learner.weights, self.learner.average
        last = self._validation.bits(self._problem, weights)
        if averaged is None:
            return Scored(last, weights, last, None)
        average = self._validation.bits(self._problem, averaged)
        better = average < last or not math.isfinite(last)
        return Scored(average if better else last, averaged if better else weights, last, average)

    def _count(self, scored: Scored) -> bool:
        """Whether this is the best so far."""
        tally = self.tally
        if math.isfinite(scored.bits) and (tally.best_bits is None or scored.bits < tally.best_bits):
            tally.best_bits, tally.best_step, tally.since_best = scored.bits, tally.step, 0
            return True
        tally.since_best += 1
        return False

    def _save(self, handed_over: Tensor) -> None:
        """A checkpoint of this step, whose model is the better of last and averaged weights."""
        tally = self.tally
        own = self._problem.read()

        def write_model(folder: Path) -> None:
            self._problem.write(handed_over)
            try:
                self.task.model.save(folder)
            finally:
                self._problem.write(own)

        state = {
            "weights": self.learner.weights,
            "learner": self.learner.state_dict(),
            "tally": asdict(tally),
        }
        with writing(self.run, self._saved):
            self.run.save_checkpoint(
                Summary(tally.step, tally.best_bits, tally.best_step), write_model, state
            )
        self._saved = tally.step

    def _ticked(self, tick: Tick) -> None:
        self._check_stop()
        self.observer.ticked(tick)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        """Ctrl-C takes effect where nothing is half done; a second one at once, which the files survive
        too.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def request(number: int, frame: Any) -> None:
            if self._stop.is_set():
                self._hurried = True
                raise KeyboardInterrupt
            self._stop.set()

        signal.signal(signal.SIGINT, request)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def writing(run: RunFolder, saved: int | None) -> Generator[None]:
    """A disk that is full or gone, in words; `saved` is the step of the last checkpoint, as far as known."""
    try:
        yield
    except OSError as error:
        good = "what is in it" if saved is None else f"its checkpoint of step {saved}"
        reason = error.strerror or str(error)
        raise CannotWrite(
            f"the run folder {run.path} cannot be written ({reason}); {good} is good: free some space, and"
            " the"
            " same command goes on from there"
        ) from error


def _record(report: StepReport, tally: Tally, scored: Scored | None) -> dict[str, Any]:
    """A line of metrics: the report's own keys, the run's totals, and what validation said."""
    bits = None if scored is None or not math.isfinite(scored.bits) else scored.bits
    record: dict[str, Any] = {"step": tally.step, "seconds": round(tally.seconds, 3)}
    values = report.as_dict()
    record |= {key: value for key, value in values.items() if key not in (*_TIMES, *_DETAILS)}
    record["validation_bits"] = bits
    record["last_bits"] = None if scored is None or not math.isfinite(scored.last) else scored.last
    average = None if scored is None else scored.average
    record["average_bits"] = average if average is not None and math.isfinite(average) else None
    return record


def on_device(state: Any, device: torch.device) -> Any:
    """A nested state with its numbers on the device; bytes, as of random generators, stay where they are."""
    if isinstance(state, Tensor):
        return state if state.dtype == torch.uint8 else state.to(device)
    if isinstance(state, dict):
        return {key: on_device(value, device) for key, value in cast("dict[str, Any]", state).items()}
    if isinstance(state, list):
        return [on_device(value, device) for value in cast("list[Any]", state)]
    return state


def begin(trainer: Trainer, warn: Callable[[str], None]) -> None:
    """Take up the newest whole checkpoint, if there is one."""
    checkpoint = trainer.run.newest(warn)
    if checkpoint is None:
        if trainer.run.read_metrics():
            warn("no checkpoint of this run is whole: it starts again from its first step.")
        return
    try:
        trainer.resume(checkpoint)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint.path} was written by another release or with other settings ({error});"
            " start another run folder."
        ) from error
