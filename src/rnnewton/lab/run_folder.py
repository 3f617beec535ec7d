"""A run folder: everything that one training run leaves behind, safe against a kill at any moment.

    config.toml          every setting of the run, resolved: what was not given is here as it was chosen
    environment.json     versions and machine, as the run last started
    metrics.jsonl        one line per report, in order, each step once
    checkpoints/         see checkpoint.py: the newest, the one before, and the best that each of them knows
    samples/             what `rnnewton sample` and the demo wrote
    done.json            the result; written last, so that its presence means a finished run
    .lock                held by the process that trains; the kernel lets go of it when that process dies

A line of metrics is on the disk before the checkpoint of its step. A resumed run cuts the metrics back to
its checkpoint's step, so that a step is neither lost nor there twice.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tomli_w

from rnnewton.lab import checkpoint as checkpoints
from rnnewton.lab.checkpoint import Checkpoint, DamagedCheckpoint, State, Summary
from rnnewton.text.errors import UserError

CONFIG, ENVIRONMENT, METRICS, DONE, LOCK = (
    "config.toml",
    "environment.json",
    "metrics.jsonl",
    "done.json",
    ".lock",
)
INDEX = "index.json"  # in checkpoints/, for rn.load


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    # ------------------------------------------------------------------ documents

    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / CONFIG).is_file()

    def read_config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{self.path} is not a run folder: its {CONFIG} cannot be read ({error.strerror})."
            ) from error
        except ValueError as error:
            raise UserError(
                f"{path} cannot be read as TOML ({error}); restore it or start another run."
            ) from error

    def write_config(self, document: Mapping[str, Any]) -> None:
        self._write_text(CONFIG, tomli_w.dumps(document))

    def write_environment(self, document: Mapping[str, Any]) -> None:
        self._write_text(ENVIRONMENT, json.dumps(document, indent=1) + "\n")

    def read_done(self) -> dict[str, Any] | None:
        """The result of a finished run, None while it is not finished."""
        try:
            text = (self.path / DONE).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.path / DONE} cannot be read ({error.strerror}).") from error
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise UserError(
                f"{self.path / DONE} is damaged; remove it, and the same command finishes the run again."
            )
        return cast("dict[str, Any]", document)

    def write_done(self, document: Mapping[str, Any]) -> None:
        self._write_text(DONE, json.dumps(document, indent=1) + "\n")

    def remove_done(self) -> None:
        """A finished run goes on."""
        (self.path / DONE).unlink(missing_ok=True)

    def _write_text(self, name: str, text: str) -> None:
        """Write a whole file or nothing, and only where it differs from what is there."""
        path = self.path / name
        if path.is_file() and path.read_bytes() == text.encode():
            return
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(text, encoding="utf-8")
            checkpoints.synchronise(unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        checkpoints.synchronise(path.parent)

    # ------------------------------------------------------------------ lock

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the folder, made where it is missing; refused while another process that lives holds it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a+")
        except OSError as error:
            raise UserError(
                f"the run folder {self.path} cannot be written ({error.strerror}); choose another with --run."
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise UserError(
                    f"the run folder {self.path} is in use by process {holder}; wait for it, or choose"
                    " another with --run."
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    # ------------------------------------------------------------------ metrics

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the metrics, whole and on the disk, or leave them as they were."""
        path = self.path / METRICS
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                written = file.write(line)
                if written != len(
                    line
                ):  # a disk that is almost full takes a part; the rest is refused with a reason
                    file.write(line[written:])
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines, in order; what cannot be read as a line ends the reading."""
        try:
            lines = (self.path / METRICS).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.path / METRICS} cannot be read ({error.strerror}).") from error
        records: list[dict[str, Any]] = []
        for line in lines[:-1]:  # the last piece is empty, or a line that was never finished
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or not isinstance(
                cast("dict[str, Any]", record).get("step"), int
            ):
                break
            records.append(cast("dict[str, Any]", record))
        return records

    def cut_metrics(self, step: int) -> None:
        """Keep the lines up to `step`, as a run does that goes on from there."""
        kept: list[dict[str, Any]] = []
        for record in self.read_metrics():
            if record["step"] <= step and (not kept or record["step"] > kept[-1]["step"]):
                kept.append(record)
        self._write_text(METRICS, "".join(json.dumps(record) + "\n" for record in kept))

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, summary: Summary, write_model: Callable[[Path], None], state: State) -> Path:
        """Write a checkpoint; then keep it, the one before, and the best that each of the two knows."""
        path = checkpoints.save(self.checkpoints, summary, write_model, state)
        best = summary.step if summary.best_step is None else summary.best_step
        index = {"newest": checkpoints.name(summary.step), "best": checkpoints.name(best)}
        self._write_text(f"checkpoints/{INDEX}", json.dumps(index) + "\n")  # before what it named goes
        newest = [step for step in checkpoints.steps(self.checkpoints) if step <= summary.step][-2:]
        keep = set(newest)
        for step in newest:
            try:
                best = checkpoints.read_summary(self.checkpoints / checkpoints.name(step)).best_step
            except DamagedCheckpoint:
                continue
            if best is not None:
                keep.add(best)
        checkpoints.remove_others(self.checkpoints, keep)
        return path

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole; each damaged one on the way is named to `warn`."""
        for step in reversed(checkpoints.steps(self.checkpoints)):
            path = self.checkpoints / checkpoints.name(step)
            try:
                return checkpoints.verify(path)
            except DamagedCheckpoint as error:
                warn(f"checkpoint {path.name} is damaged ({error}); the one before it is used.")
        return None

    def best(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The checkpoint whose model scored best on validation; the newest one where nothing was scored."""
        newest = self.newest(warn)
        if newest is None or newest.summary.best_step in (None, newest.summary.step):
            return newest
        path = self.checkpoints / checkpoints.name(newest.summary.best_step)
        try:
            return checkpoints.verify(path)
        except DamagedCheckpoint as error:
            warn(
                f"the best checkpoint {path.name} is damaged ({error}); the newest,"
                f" {newest.path.name}, is used."
            )
            return newest
