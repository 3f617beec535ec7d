"""The native CPU path: the time loops of every cell in C++, built at first use.

Delete this folder and the eager passes do everything.
"""

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from rnnewton.recurrent.architecture import Architecture
from rnnewton.recurrent.blocks import Block, Scored
from rnnewton.recurrent.cells.base import State
from rnnewton.recurrent.kernels.build import BuildError, load
from rnnewton.recurrent.kernels.chunk import NativeChunk, Way
from rnnewton.recurrent.kernels.interface import CELLS, MOST_LAYERS, declare
from rnnewton.recurrent.kernels.stream import NativeStream

__all__ = [
    "NativeChunk",
    "NativeStream",
    "Way",
    "learn_block",
    "library",
    "open_chunk",
    "open_stream",
    "read_block",
    "release_memory",
    "supports",
    "unavailable",
]

AS_IT_IS = Way()
logger = logging.getLogger("rnnewton.kernels")


@lru_cache(maxsize=1)
def _attempt() -> tuple[Any, str | None]:
    try:
        return declare(load()), None
    except BuildError as error:
        logger.warning("the native kernels are not used, the eager passes are: %s", error)
        return None, str(error)


def library() -> Any:
    """The loaded library, built if need be; None where it cannot be had."""
    return _attempt()[0]


def unavailable() -> str | None:
    """Why there is no library here, or None."""
    return _attempt()[1]


def release_memory() -> None:
    """Gives the memory that is kept between passes back to the system."""
    if _attempt.cache_info().currsize and library() is not None:
        library().rn_release()


def supports(architecture: Architecture, flat: Tensor) -> str | None:
    """None if the native path can take this network, else the reason why not. Builds nothing."""
    if flat.device.type != "cpu":
        return f"the weights are on {flat.device}; the native path is for the CPU"
    if flat.dtype != torch.float32:
        return f"the weights are {flat.dtype}; the native path computes in float32"
    if architecture.cell not in CELLS:
        return f"the cell {architecture.cell!r} has no native kernel"
    if architecture.depth > MOST_LAYERS:
        return f"{architecture.depth} layers are more than the {MOST_LAYERS} that the native path takes"
    return None


def open_chunk(
    architecture: Architecture, flat: Tensor, block: Block, way: Way = AS_IT_IS
) -> tuple[NativeChunk | None, str | None]:
    """A native chunk and None, or None and the reason why the eager path has to do it."""
    reason = supports(architecture, flat) or unavailable()
    if reason is not None:
        return None, reason
    chunk = NativeChunk(library(), architecture, flat, block, way)
    if not isinstance(way.memory, str) and not chunk.stored and chunk.workspace_bytes > way.memory:
        return (
            None,
            f"{chunk.workspace_bytes} bytes are the least it works in, above the budget of {way.memory}",
        )
    return chunk, None


def read_block(
    architecture: Architecture, flat: Tensor, inputs: Tensor, state: list[State]
) -> tuple[Tensor, list[State]] | None:
    """The outputs (T, B, O) and last states of a block without targets; None where the eager path has to do
    it."""
    if _traced(flat, inputs):
        return None
    nothing = inputs.new_empty(0, dtype=torch.int64)
    chunk, _ = open_chunk(
        architecture,
        flat,
        Block(inputs, nothing, Scored(False, None, len(inputs)), state),
        Way(memory="recomputed"),
    )
    return None if chunk is None else (chunk.logits(), chunk.last)


def learn_block(
    architecture: Architecture, flat: Tensor, signal: tuple[Tensor, Tensor], state: list[State] | None
) -> tuple[Tensor, list[State], Tensor] | None:
    """Outputs, last states, and the flat gradient of the loss summed over (inputs, targets); None where the
    eager path has to do it."""
    inputs, targets = signal
    block = Block(inputs, targets, Scored(False, None, len(inputs)), state)
    chunk, _ = open_chunk(architecture, flat, block)
    if chunk is None:
        return None
    gradient = torch.zeros_like(flat)
    chunk.gradient(gradient)
    return chunk.logits(), chunk.last, gradient


def _traced(*tensors: Tensor) -> bool:
    """Whether torch looks at these through a transform, so that their memory is not the whole story."""
    return any(
        type(x) is not Tensor
        or torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]  # no public name
        or unpack_dual(x).tangent is not None
        for x in tensors
    )


def open_stream(architecture: Architecture, flat: Tensor) -> NativeStream | None:
    """A stream of symbols in the native library, or None where the eager path has to do it."""
    if not architecture.categorical or supports(architecture, flat) or unavailable():
        return None
    return NativeStream(library(), architecture, flat)
