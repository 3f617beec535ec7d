"""What a person sees of a run: a line per step, and in a terminal a live one with the CG iterations ticking
in it.

Everything goes to standard error, and nothing here changes a result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rnnewton.lab.settings import LimitSettings, Settings
from rnnewton.newton.descent import Tick
from rnnewton.text.errors import UserError

_NATS = math.log(2)


@dataclass
class Pace:
    """Where the run is and when it will end."""

    limits: LimitSettings = field(default_factory=LimitSettings)
    step: int = 0
    seconds: float = 0.0  # of training, at the last line
    step_seconds: float = 0.0
    moment: float = field(default_factory=time.monotonic)  # when that was

    def begin(self, settings: Settings, step: int, seconds: float) -> None:
        self.limits, self.step, self.seconds = settings.limits, step, seconds
        self.moment = time.monotonic()

    def move(self, record: dict[str, Any]) -> None:
        seconds, step = float(record["seconds"]), int(record["step"])
        self.step_seconds = (seconds - self.seconds) / max(step - self.step, 1)
        self.step, self.seconds, self.moment = step, seconds, time.monotonic()

    def left(self) -> float | None:
        """Seconds until the first limit, as far as the last step tells."""
        gone = time.monotonic() - self.moment
        ends: list[float] = []
        if self.limits.seconds is not None:
            ends.append(self.limits.seconds - self.seconds - gone)
        if self.limits.steps is not None and self.step_seconds:
            ends.append((self.limits.steps - self.step) * self.step_seconds - gone)
        return max(min(ends), 0.0) if ends else None


def line_of(record: dict[str, Any], before: dict[str, Any] | None, left: float | None) -> str:
    """One step in one line."""
    parts = [f"step {record['step']:>4}", clock(record["seconds"])]
    loss = record.get("loss_before")
    if loss is not None:
        parts.append(f"training {loss / _NATS:.3f}")
    bits = record.get("validation_bits")
    parts.append("validation " + (f"{bits:.3f} bits" if bits is not None else "    -     "))
    present = [key for key in ("mu", "lambda", "kappa") if record.get(key) is not None]
    damping = [f"{key} {record[key]:.2g}" for key in present]
    parts += [" ".join(damping)] if damping else []
    if record.get("cg_iterations") is not None:
        parts.append(f"cg {record['cg_iterations']:>3}")
    speed = _speed(record, before)
    if speed is not None:
        parts.append(f"{speed:,.0f} characters/s")
    if record.get("accepted") is False:
        parts.append("refused")
    if left is not None:
        parts.append(f"{clock(left)} left")
    return "  ".join(parts)


def _speed(record: dict[str, Any], before: dict[str, Any] | None) -> float | None:
    """Characters of gradient arithmetic a second, since the last line."""
    now, then = record.get("work_characters"), 0.0 if before is None else before.get("work_characters")
    if now is None or then is None:
        return None
    seconds = record["seconds"] - (0.0 if before is None else before["seconds"])
    return (now - then) / seconds if seconds > 0 else None


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:>2}:{rest:02d}"


class Plain:
    """A line per step: what a file or a pipe gets."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._pace = Pace()
        self._before: dict[str, Any] | None = None

    def say(self, line: str) -> None:
        self._print(line)

    def warn(self, line: str) -> None:
        self._print(f"warning: {line}")

    def started(self, settings: Settings, step: int, seconds: float) -> None:
        self._pace.begin(settings, step, seconds)
        if step:
            self._print(f"going on after step {step}.")

    def ticked(self, tick: Tick) -> None:
        """Nothing: a file has no use for what will be overwritten."""

    def stepped(self, record: dict[str, Any]) -> None:
        self._pace.move(record)
        self._print(line_of(record, self._before, self._pace.left()))
        if record.get("recovery"):
            self._print(f"  {record['recovery']}")
        self._before = record

    def ended(self) -> None:
        """Nothing is open."""


class Terminal(Plain):
    """The same lines, and below them one that lives."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._shown = 0.0

    def started(self, settings: Settings, step: int, seconds: float) -> None:
        super().started(settings, step, seconds)
        self._live.start()

    def ticked(self, tick: Tick) -> None:
        if time.monotonic() - self._shown < 0.1 and tick.iteration < tick.limit:
            return
        self._shown = time.monotonic()
        bar = "█" * round(20 * tick.iteration / tick.limit)
        left = self._pace.left()
        text = f"step {tick.step:>4}  {bar:<20} {tick.iteration}/{tick.limit}"
        text += "" if math.isnan(tick.q) else f"  q {tick.q:.4g}"
        text += "" if left is None else f"  {clock(left)} left"
        self._live.update(Text(text, style="dim"), refresh=True)

    def ended(self) -> None:
        self._live.stop()


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Scalars beside the metrics, for those who watch runs there. Wraps another watcher."""

    KEYS = ("loss_before", "validation_bits", "mu", "lambda", "kappa", "cg_iterations", "step_size", "p")

    def __init__(self, inner: Plain, folder: Path) -> None:
        self._inner, self._folder = inner, folder
        self._writer: _Writer | None = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "--tensorboard needs the package tensorboard: pip install 'rnnewton[tensorboard]', or leave"
                " it out."
            ) from error
        self._make: Callable[..., _Writer] = SummaryWriter

    def say(self, line: str) -> None:
        self._inner.say(line)

    def warn(self, line: str) -> None:
        self._inner.warn(line)

    def started(self, settings: Settings, step: int, seconds: float) -> None:
        self._writer = self._make(str(self._folder), purge_step=step + 1)
        self._inner.started(settings, step, seconds)

    def ticked(self, tick: Tick) -> None:
        self._inner.ticked(tick)

    def stepped(self, record: dict[str, Any]) -> None:
        if self._writer is not None:
            for key in self.KEYS:
                if record.get(key) is not None:
                    self._writer.add_scalar(key, float(record[key]), int(record["step"]))
        self._inner.stepped(record)

    def ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._inner.ended()
