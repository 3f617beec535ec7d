"""A run from a command to its result: settings merged, text read, folder opened, trained, scored, drawn."""

from __future__ import annotations

import logging
import math
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

import rnnewton
from rnnewton.lab import presets
from rnnewton.lab.building import build, device_of, parameters
from rnnewton.lab.choices import Facts, in_one_line, machine, resolve
from rnnewton.lab.configuration import changed, flag, flat, from_document, is_fixed, to_document
from rnnewton.lab.learner import Task
from rnnewton.lab.run_folder import RunFolder
from rnnewton.lab.scoring import lanes
from rnnewton.lab.settings import Settings
from rnnewton.lab.training import Observer, Trainer, begin, writing
from rnnewton.recurrent.kernels import unavailable
from rnnewton.text.blocks import counts
from rnnewton.text.corpus import Corpus, CorpusSettings, read_corpus
from rnnewton.text.errors import UserError

SCORED = 500_000  # characters: longer texts are scored by a sample; `rnnewton evaluate` reads all


class Watcher(Observer, Protocol):
    """An observer that is also told of beginning and end."""

    def say(self, line: str) -> None: ...
    def warn(self, line: str) -> None: ...
    def started(self, settings: Settings, step: int, seconds: float) -> None: ...
    def ended(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What a finished run shows; `done.json` holds the same."""

    run: RunFolder
    result: dict[str, Any]
    before: bool  # it was finished already, and nothing was changed


def run_name(given: Mapping[str, Any]) -> str:
    """<name>-<date>, where no folder is given."""
    text = given.get("preset") or given.get("text") or "builtin"
    stem = re.sub(
        r"[^\w.-]+", "-", Path(str(text).replace(":", "/")).stem if "preset" not in given else str(text)
    )
    return f"{stem.strip('-.') or 'run'}-{datetime.now():%Y-%m-%d-%H%M%S}"


def train(run: RunFolder, given: Mapping[str, Any], watcher: Watcher) -> Outcome:
    """Begin a run or go on with it, to its end."""
    with ExitStack() as stack:
        existed = run.exists()
        if existed:
            stack.enter_context(run.locked())
        else:
            _check_place(run.path)
        settings = _merged(run, given)
        done = run.read_done() if existed else None
        if done is not None and _nothing_left(done, settings, given):
            return Outcome(run, done, before=True)
        corpus = _read(settings, watcher.say)
        settings = _same_text(run, settings, corpus)
        native = _prepare_kernels(settings, watcher)
        accelerator = settings.machine.device != "cpu"
        facts = Facts(len(corpus.training), len(corpus.alphabet), *machine(), native, accelerator)
        settings = _with_threads(resolve(settings, facts))
        watcher.say(in_one_line(settings, facts) + ".")
        task = _task(settings, corpus)
        validation = lanes(corpus.validation, task.device, SCORED)
        if validation is not None and validation.count < validation.total:
            watcher.say(
                f"validation on {validation.count:,} of its {validation.total:,} characters, evenly spread."
            )
        trainer = Trainer(run, task, validation, watcher)
        if not existed:
            stack.enter_context(run.locked())
            if run.exists():
                raise UserError(f"another process began a run in {run.path} just now; choose another --run.")
        with writing(run, None):
            run.write_config(to_document(settings))
            run.write_environment(environment(settings))
            run.remove_done()
            begin(trainer, watcher.warn)
        watcher.started(settings, trainer.tally.step, trainer.tally.seconds)
        try:
            reason = trainer.train()
        finally:
            watcher.ended()
        with writing(run, trainer.tally.step):
            result = _finish(run, trainer, corpus, reason, watcher.warn)
            run.write_done(result)
        return Outcome(run, result, before=False)


def _check_place(path: Path) -> None:
    """A new run needs a place of its own: a folder that is not there, or an empty one."""
    if path.exists() and not path.is_dir():
        raise UserError(f"--run {path} is a file; give a folder.")
    others = [each.name for each in path.iterdir() if not each.name.startswith(".")] if path.is_dir() else []
    if set(others) - {"environment.json"}:
        raise UserError(
            f"--run {path} is a folder with other things in it ({others[0]}); give a new or empty one."
        )


def _merged(run: RunFolder, given: Mapping[str, Any]) -> Settings:
    """Flag beats TOML beats preset beats default; a run that goes on keeps what it is."""
    given = dict(given)
    if not run.exists():
        base = Settings()
        if "preset" in given:
            base = changed(presets.find(given["preset"]).settings, {"preset": given["preset"]})
            _place_corpus(given, presets.find(given["preset"]))
        return changed(base, given)
    stored = changed(Settings(), from_document(run.read_config(), str(run.path / "config.toml")))
    values = {**flat(stored), "preset": stored.preset}
    for name, value in given.items():
        if is_fixed(name) and name != "text" and values[name] != value:
            raise UserError(
                f"{flag(name)} {_shown(value)} is another one than that of the run in {run.path}, which has"
                f" {_shown(values[name])}; leave it out to go on, or give another folder with --run."
            )
    if "steps" in given or "seconds" in given:  # the limits of a command replace those before, both together
        given = {"steps": None, "seconds": None, **given}
    return changed(stored, {name: value for name, value in given.items() if name != "preset"})


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "nothing" if value is None else str(value)


def _place_corpus(given: dict[str, Any], preset: presets.Preset) -> None:
    """A preset without a text runs on its own corpus; its split is that corpus's only."""
    text = given.setdefault("text", preset.corpus)
    if preset.split is not None and text.partition(":")[0] == preset.corpus:
        given.setdefault("split", preset.split)


def _nothing_left(done: dict[str, Any], settings: Settings, given: Mapping[str, Any]) -> bool:
    """Whether a finished run stays as it is: the limit that ended it was not raised."""
    reason, limits = done.get("reason"), settings.limits
    if "text" in given and given["text"] != done.get("text"):
        return False  # whether it is another text is seen when it is read
    if reason == "patience":
        return limits.patience is None or limits.patience <= int(done.get("since_best") or 0)
    if limits.steps is not None and limits.steps <= int(done.get("step") or 0):
        return True
    return limits.seconds is not None and limits.seconds <= float(done.get("seconds") or 0.0)


def _read(settings: Settings, say: Callable[[str], None]) -> Corpus:
    text = settings.text
    corpus = read_corpus(
        CorpusSettings(text.text or "builtin", text.read, text.alphabet, text.merge or "", text.split)
    )
    say(corpus.line() + ".")
    return corpus


def _same_text(run: RunFolder, settings: Settings, corpus: Corpus) -> Settings:
    known = settings.text.digest
    if known is not None and known != corpus.digest:
        raise UserError(
            f"the text {settings.text.text or 'builtin'} is another one than that of the run in {run.path};"
            " give the run's own text, or another folder with --run."
        )
    return changed(settings, {"digest": corpus.digest})


def _task(settings: Settings, corpus: Corpus) -> Task:
    if len(corpus.training) < 2:
        raise UserError(
            "the training text has fewer than 2 characters; give a longer text or another --split."
        )
    device = device_of(settings.machine.device)
    seen = counts(corpus.training, len(corpus.alphabet))
    model = build(settings, len(corpus.alphabet))
    model.alphabet = corpus.alphabet
    frequencies = torch.from_numpy(seen / seen.sum()).to(device=device, dtype=next(model.parameters()).dtype)
    return Task(model, corpus.training, settings, frequencies)


def _with_threads(settings: Settings) -> Settings:
    """The one place that sets the process's threads: this process was started for this run.

    Their number is written down, as sums may round by it: a run that goes on takes the number it began with.
    """
    if settings.machine.threads is None:
        return changed(settings, {"threads": torch.get_num_threads()})
    if settings.machine.threads != torch.get_num_threads():
        torch.set_num_threads(settings.machine.threads)
    return settings


def _prepare_kernels(settings: Settings, watcher: Watcher) -> bool:
    """The native passes are built before the run's clock starts; without them the eager ones do the same,
    slower.
    """
    machine = settings.machine
    if machine.device != "cpu" or machine.precision == "fp64":
        return False
    heard = logging.getLogger("rnnewton.kernels")
    handler, level = _Said(watcher.say), heard.level
    heard.addHandler(handler)
    heard.setLevel(logging.INFO)
    try:
        reason = unavailable()
    finally:
        heard.removeHandler(handler)
        heard.setLevel(level)
    if reason is not None:
        watcher.warn(f"the native kernels cannot be had, and training is several times slower: {reason}.")
    return reason is None


class _Said(logging.Handler):
    """Lines of a logger, for the person who waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


def environment(settings: Settings) -> dict[str, Any]:
    """Versions and machine."""
    cores, memory = machine()
    return {
        "rnnewton": rnnewton.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": torch.backends.cpu.get_cpu_capability(),
        "device": settings.machine.device,
        "kernels": "native" if unavailable() is None else "eager",
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory": memory,
    }


def _finish(
    run: RunFolder, trainer: Trainer, corpus: Corpus, reason: str, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Scores the best model, draws the curves, and says what came out."""
    from rnnewton.lab.figures import draw_curves
    from rnnewton.recurrent.saving import load

    task, tally, settings = trainer.task, trainer.tally, trainer.task.settings
    best = run.best(warn)
    weights = trainer.learner.weights
    if best is not None:
        handed_over = load(best.path).to(device=task.device, dtype=weights.dtype)
        weights = torch.cat([p.detach().reshape(-1) for p in handed_over.parameters()])
    problem = task.problem()

    def bits(ids: Any) -> float | None:
        scored = lanes(ids, task.device, SCORED)
        value = None if scored is None else scored.bits(problem, weights)
        return None if value is None or not math.isfinite(value) else value

    like_validation = min(max(len(corpus.validation), len(corpus.test), 10_000), SCORED)
    draw_curves(run)
    return {
        "run": str(run.path),
        "preset": settings.preset,
        "text": settings.text.text,
        "reason": reason,
        "step": tally.step,
        "seconds": round(tally.seconds, 3),
        "work": tally.work,
        "best_step": tally.best_step,
        "since_best": tally.since_best,
        "training_bits": bits(corpus.training[:like_validation]),
        "validation_bits": tally.best_bits,
        "test_bits": bits(corpus.test),
        "parameters": parameters(settings, len(corpus.alphabet)),
        "symbols": len(corpus.alphabet),
    }
