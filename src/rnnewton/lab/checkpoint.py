"""A checkpoint: one folder that is either whole and checked, or not there.

    checkpoints/step-000012/
        model.json, weights.safetensors   the model that a run would hand over at this step: a model folder
        state.json, state.safetensors     all that training needs to go on to the bit; nothing is pickled
        checkpoint.json                   step, validation bits, and the size and SHA-256 of every other file

It is written under another name in the same folder, every file is synchronised, and one rename puts it in
place: a process killed at any moment leaves either the whole checkpoint or a stray folder that the next run
removes.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = 1
SUMMARY = "checkpoint.json"
STATE_JSON, STATE_TENSORS = "state.json", "state.safetensors"
_UNFINISHED = ".writing-"
_NAME = re.compile(r"step-(\d{6,})")
_TENSOR = "__tensor__"

State = Mapping[str, Any]


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what was written; the message says what is wrong with it."""


@dataclass(frozen=True)
class Summary:
    """What is known of a checkpoint without reading its weights."""

    step: int
    validation_bits: float | None = None
    best_step: int | None = None  # the step whose model was the best so far, this one included


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    summary: Summary


def name(step: int) -> str:
    return f"step-{step:06d}"


def steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, oldest first, whole or not."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in found if match)


def save(folder: Path, summary: Summary, write_model: Callable[[Path], None], state: State) -> Path:
    """Write one checkpoint into `folder`, atomically; `write_model` writes the model's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{_UNFINISHED}{name(summary.step)}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        write_model(unfinished)
        _write_state(unfinished, state)
        files = {path.name: _fingerprint(path) for path in sorted(unfinished.iterdir())}
        document = {"format": FORMAT, **asdict(summary), "files": files}
        document["sha256"] = _digest_of(document)
        (unfinished / SUMMARY).write_text(json.dumps(document, indent=1) + "\n")
        for path in unfinished.iterdir():
            synchronise(path)
        synchronise(unfinished)
        final = folder / name(summary.step)
        _replace(unfinished, final)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, SafetensorError):  # it wraps the system's error and keeps its number in the text
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
        raise
    synchronise(folder)
    return final


def verify(path: Path) -> Checkpoint:
    """The checkpoint at `path`, every byte of it checked, or DamagedCheckpoint."""
    document = _read_summary(path)
    for file, written in cast("dict[str, Any]", document["files"]).items():
        found = path / file
        try:
            if found.stat().st_size != written["bytes"]:
                raise DamagedCheckpoint(
                    f"{file} has {found.stat().st_size} bytes, {written['bytes']} were written"
                )
            if _fingerprint(found)["sha256"] != written["sha256"]:
                raise DamagedCheckpoint(f"{file} was altered: its SHA-256 is not the one written")
        except OSError as error:
            raise DamagedCheckpoint(f"{file} cannot be read ({error.strerror})") from error
    return Checkpoint(path, _summary_of(document))


def read_summary(path: Path) -> Summary:
    """The summary alone, without checking the other files."""
    return _summary_of(_read_summary(path))


def read_state(path: Path) -> dict[str, Any]:
    """The nested state, tensors on the CPU. Call `verify` before."""
    try:
        tree = json.loads((path / STATE_JSON).read_bytes())
        # Copies lie on the boundaries that torch itself chooses: what a sum rounds to may depend on that.
        tensors = {key: tensor.clone() for key, tensor in load_file(path / STATE_TENSORS).items()}
        return cast("dict[str, Any]", _unflatten(tree, tensors))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DamagedCheckpoint(f"the training state cannot be read ({error})") from error


def remove_others(folder: Path, keep: set[int]) -> None:
    """Remove every checkpoint but those of the steps in `keep`, and whatever a killed process left."""
    for step in steps(folder):
        if step not in keep:
            _remove(folder / name(step))
    if folder.is_dir():
        for stray in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(stray, ignore_errors=True)


def synchronise(path: Path) -> None:
    """Ask the system to put a file or a folder on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(unfinished: Path, final: Path) -> None:
    if final.exists():  # a damaged one of the same step, or a step that is done again
        _remove(final)
    unfinished.rename(final)


def _remove(path: Path) -> None:
    """Remove a folder so that no moment shows it half removed under its own name."""
    stray = path.with_name(f"{_UNFINISHED}old-{path.name}-{os.getpid()}")
    shutil.rmtree(stray, ignore_errors=True)
    path.rename(stray)
    shutil.rmtree(stray, ignore_errors=True)


def _write_state(folder: Path, state: State) -> None:
    tensors: dict[str, Tensor] = {}
    tree = _flatten(state, "state", tensors)
    (folder / STATE_JSON).write_text(json.dumps(tree) + "\n")
    save_file(tensors, folder / STATE_TENSORS)
    _read_and_write_for_all(folder / STATE_TENSORS)


def _read_and_write_for_all(path: Path) -> None:
    """safetensors writes files that only their owner may read; a run folder is shared like any other file."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        order = _layout(value)
        laid_out = value.detach().to("cpu").permute(order)
        tensors[path] = laid_out.clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path, "order": order}
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        if not all(isinstance(key, str) for key in entries):
            raise TypeError(f"a state's keys must be strings to be stored; at {path}: {list(entries)[:5]}")
        return {key: _flatten(entry, f"{path}.{key}", tensors) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        entries = cast("list[Any]", value)
        return [_flatten(entry, f"{path}.{index}", tensors) for index, entry in enumerate(entries)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a state is made of dicts, lists, tensors and plain values; at {path}: {type(value).__name__}"
    )


def _layout(tensor: Tensor) -> list[int]:
    """The axes as they lie in memory: what a product rounds to depends on whether its matrix lies by rows
    or columns.
    """
    axes = list(range(tensor.dim()))
    laid_out = sorted(axes, key=lambda axis: -tensor.stride(axis))
    return laid_out if tensor.permute(laid_out).is_contiguous() else axes


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if _TENSOR in entries:
            order = cast("list[int]", entries["order"])
            return tensors[entries[_TENSOR]].permute([order.index(axis) for axis in range(len(order))])
        return {key: _unflatten(entry, tensors) for key, entry in entries.items()}
    if isinstance(value, list):
        return [_unflatten(entry, tensors) for entry in cast("list[Any]", value)]
    return value


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / SUMMARY).read_bytes())
    except OSError as error:
        raise DamagedCheckpoint(f"{SUMMARY} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{SUMMARY} is not what was written ({error})") from error
    if not isinstance(document, dict) or "sha256" not in document:
        raise DamagedCheckpoint(f"{SUMMARY} is not what was written")
    document = cast("dict[str, Any]", document)
    if document.get("format") != FORMAT:
        raise DamagedCheckpoint(
            f"{SUMMARY} has format {document.get('format')!r}; this rnnewton reads {FORMAT}"
        )
    if _digest_of(document) != document["sha256"]:
        raise DamagedCheckpoint(f"{SUMMARY} was altered: its SHA-256 is not the one written")
    return document


def _summary_of(document: dict[str, Any]) -> Summary:
    return Summary(document["step"], document["validation_bits"], document["best_step"])


def _digest_of(document: Mapping[str, Any]) -> str:
    content = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
