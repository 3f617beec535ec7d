"""A batch as the passes take it: checked, on one device, with its scored positions counted.

Legend: T steps, B sequences, V inputs, O outputs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.cells.base import Hidden, HiddenCell, State

At = str | Tensor


class Scored(NamedTuple):
    """The positions that the loss counts."""

    last: bool  # the last step only
    mask: Tensor | None  # (T, B), None for all
    steps: int

    def rows(self, start: int, stop: int) -> tuple[int, int] | None:
        """The scored steps of the segment [start, stop), or None."""
        if not self.last:
            return start, stop
        return (stop - 1, stop) if stop == self.steps else None

    def masked(self, start: int, stop: int) -> Tensor | None:
        return None if self.mask is None else self.mask[start:stop]


class Block(NamedTuple):
    inputs: Tensor  # (T, B) symbols or (T, B, V)
    targets: Tensor  # (T, B) symbols or (T, B, O)
    scored: Scored
    state: list[State] | None  # None: zeros

    def sequences(self, start: int, stop: int) -> "Block":
        """The block of sequences start … stop − 1."""
        scored = self.scored
        if scored.mask is not None:
            scored = scored._replace(mask=scored.mask[:, start:stop])
        state = self.state and [type(s)(*(x[start:stop] for x in s)) for s in self.state]
        return Block(self.inputs[:, start:stop], self.targets[:, start:stop], scored, state)


def chunks_of(inputs: Any, targets: Any, state: Any, at: Any) -> tuple[list[tuple[Any, ...]], bool]:
    """(inputs, targets, at, state) for every chunk, and whether a list was given.

    Either two lists, or one list of chunks `(inputs, targets[, at[, state]])`, or one block.
    """
    if not isinstance(inputs, list):
        if targets is None:
            raise ValueError(
                "targets are missing: give linearize(inputs, targets), or a list of (inputs, targets)"
            )
        return [(inputs, targets, at, state)], False
    if targets is None:
        chunks = [(*chunk, *(at, state)[len(chunk) - 2 :]) for chunk in inputs]
        return chunks, True
    if not isinstance(targets, list) or len(targets) != len(inputs):
        raise ValueError("inputs is a list of chunks, so targets must be a list of the same length")
    ats = at if isinstance(at, list) else [at] * len(inputs)
    states = [None] * len(inputs) if state is None else state
    return list(zip(inputs, targets, ats, states, strict=True)), True


def block_of(architecture: Architecture, chunk: Sequence[Any], like: Tensor, gated: bool) -> Block:
    """One chunk, its shapes, dtypes and devices checked; nothing is read from the device."""
    inputs, targets, at, state = chunk
    inputs = _signal("inputs", inputs, architecture.inputs, like)
    targets = _signal("targets", targets, architecture.outputs, like)
    steps, sequences = inputs.shape[:2]
    if steps == 0 or sequences == 0:
        raise ValueError(f"the batch is empty: inputs have shape {tuple(inputs.shape)}, time x sequences")
    if targets.shape[:2] != inputs.shape[:2]:
        raise ValueError(
            f"targets cover {tuple(targets.shape[:2])} (time, sequences), inputs {tuple(inputs.shape[:2])}; "
            "targets always cover every step, also those that are not scored"
        )
    if state is not None:
        state = checked_state(architecture, state, sequences, like, gated)
    return Block(inputs, targets, scored_of(at, steps, sequences, like), state)


def scored_of(at: At, steps: int, sequences: int, like: Tensor) -> Scored:
    if isinstance(at, Tensor):
        if at.shape != (steps, sequences) or at.dtype != torch.bool or at.device != like.device:
            raise ValueError(
                f"a mask must be a bool tensor of shape {(steps, sequences)} on {like.device}; "
                f"this one is {at.dtype} {tuple(at.shape)} on {at.device}"
            )
        return Scored(False, at, steps)
    if at not in ("every", "last"):
        raise ValueError(f"at={at!r} is not known; take 'every', 'last' or a (T, B) bool mask")
    return Scored(at == "last", None, steps)


def checked_state(
    architecture: Architecture, state: Any, sequences: int, like: Tensor, gated: bool
) -> list[State]:
    if len(state) != architecture.depth:
        raise ValueError(f"the state has {len(state)} layers, the model {architecture.depth}")
    kind = HiddenCell if gated else Hidden
    states: list[State] = []
    for width, given in zip(architecture.hidden, state):
        tensors = tuple(given)
        for tensor in tensors:
            if len(tensors) != len(kind._fields) or tensor.shape != (sequences, width):
                raise ValueError(
                    f"a state of this model is {kind._fields} of shape {(sequences, width)}; "
                    f"{[tuple(x.shape) for x in tensors]} was given"
                )
            _same(f"the state {kind.__name__}", tensor, like)
        states.append(kind(*tensors))
    return states


def check_cotangents(
    architecture: Architecture, block: Block, outputs: Any, states: Any, gated: bool
) -> None:
    """Those of a vjp. Of another shape they would be broadcast, cut or left out without a word."""
    where = tuple(block.inputs.shape[:2])
    if outputs is not None:
        _shaped("outputs", outputs, (*where, architecture.output_size), block)
    if states is None:
        return
    if len(states) != architecture.depth:
        raise ValueError(f"cotangents of {len(states)} layers were given, the model has {architecture.depth}")
    kind = HiddenCell if gated else Hidden
    for layer, (width, given) in enumerate(zip(architecture.hidden, states)):
        if given is not None and not isinstance(given, kind):
            raise TypeError(
                f"the cotangents of layer {layer}'s states are {kind.__name__} {kind._fields}, as jvp gives "
                f"them, or None; {type(given).__name__} was given"
            )
        for field, part in zip(kind._fields, given or ()):
            _shaped(f"layer {layer}'s {field}", part, (*where, width), block)


def _shaped(what: str, x: Tensor | None, shape: tuple[int, ...], block: Block) -> None:
    if x is not None and (x.shape != shape or x.device != block.inputs.device):
        raise ValueError(
            f"the cotangent of {what} has shape {shape} on {block.inputs.device}; {tuple(x.shape)} on "
            f"{x.device} was given"
        )


def _signal(what: str, value: Any, kind: Any, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor, time first; {type(value).__name__} was given")
    if isinstance(kind, int):
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            raise TypeError(
                f"{what} are symbols of this model: whole numbers of dtype int64, not {value.dtype}"
            )
        if value.dim() != 2:
            raise ValueError(
                f"{what} must have shape (T, B), time x sequences; {tuple(value.shape)} was given"
            )
        if value.device != like.device:
            raise ValueError(f"{what} are on {value.device}, the model is on {like.device}; move one of them")
        return value.long()
    if value.dim() != 3 or value.shape[2] != kind.size:
        raise ValueError(f"{what} must have shape (T, B, {kind.size}); {tuple(value.shape)} was given")
    _same(what, value, like)
    return value


def _same(what: str, value: Tensor, like: Tensor) -> None:
    if value.dtype != like.dtype:
        raise TypeError(
            f"{what}: dtype {value.dtype} was given, the model's weights are {like.dtype}; convert one"
        )
    if value.device != like.device:
        raise ValueError(f"{what}: on {value.device}, the model is on {like.device}; move one of them")


def check_values(architecture: Architecture, blocks: list[Block], flat: Tensor) -> int:
    """The one look at values, before the passes: symbols in range, weights finite; returns n, the scored
    positions.

    On the meta device there is nothing to look at: the checks are left out and a mask counts as all True.
    """
    known = sum(
        block.inputs.shape[1] * (1 if block.scored.last else block.inputs.shape[0])
        for block in blocks
        if block.scored.mask is None
    )
    masks = [block.scored.mask for block in blocks if block.scored.mask is not None]
    if flat.is_meta:
        return known + sum(mask.numel() for mask in masks)
    looked: list[tuple[str, Tensor, int]] = []
    for block in blocks:
        for what, value, kind in (
            ("inputs", block.inputs, architecture.inputs),
            ("targets", block.targets, architecture.outputs),
        ):
            if isinstance(kind, int):
                looked.append((what, value, kind))
    flags = [(~torch.isfinite(flat)).any().long()]
    flags += [((value < 0) | (value >= size)).any().long() for _, value, size in looked]
    flags += [mask.sum() for mask in masks]
    answers = torch.stack(flags).tolist()
    if answers[0]:
        raise ValueError(
            "a weight is not finite (NaN or infinite), so there is nothing to linearise; load an earlier"
            " checkpoint"
        )
    for (what, value, size), bad in zip(looked, answers[1:]):
        if bad:
            raise ValueError(_stray(what, value, size))
    count = known + sum(answers[1 + len(looked) :])
    if count == 0:
        raise ValueError("no position is scored: the mask is False everywhere")
    return count


def check_symbols(what: str, value: Tensor, size: int) -> None:
    """The same look for a call that has no targets; under torch.vmap there is no single value to look at."""
    looked_at = not value.is_meta and not is_batched(value) and value.numel()
    if looked_at and bool(((value < 0) | (value >= size)).any()):
        raise ValueError(_stray(what, value, size))


def is_batched(x: Tensor) -> bool:
    """Whether torch.vmap stands behind a tensor, under whatever other transforms of torch.func."""
    functorch: Any = torch._C._functorch  # type: ignore  # torch has no public name for these questions
    while functorch.is_gradtrackingtensor(x):
        x = functorch.get_unwrapped(x)
    return functorch.is_batchedtensor(x)


def _stray(what: str, value: Tensor, size: int) -> str:
    step, sequence = torch.nonzero((value < 0) | (value >= size))[0].tolist()
    return (
        f"{what}: symbol {int(value[step, sequence])} at step {step} of sequence {sequence}, "
        f"but the model knows symbols 0 to {size - 1}"
    )
