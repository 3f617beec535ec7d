"""What the optimiser sees of a network: flat weights, a loss on a batch, and one point of it ready for
products.

p: number of parameters, T: time, B: sequences. Flat vectors are (p,), in the order of `module.parameters()`.
A chunk is `(inputs, targets)`, optionally with `at` and `state`; a batch is a chunk or a list of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rnnewton.newton.chunks import Batch, as_chunks, choose, cut

WHOLE_BELOW = 10_000  # scored positions: a smaller batch is its own curvature batch


@dataclass(frozen=True)
class WeightTraffic:
    """What flows through one weight matrix on one chunk."""

    name: str
    start: int  # flat[start : start + rows * columns] is the matrix, row-major
    rows: int
    columns: int
    inputs: Tensor  # (T, B, columns), or (T, B) int64 for a look-up
    deltas: Tensor  # (T, B, rows): cotangents at its output, per position, not divided by n
    transposed: bool = False  # stored as (columns, rows), as torch.nn.Embedding does


@runtime_checkable
class Linearization(Protocol):
    """One point, one batch; multiplied many times."""

    @property
    def loss(self) -> Tensor: ...  # float64 scalar, mean over scored positions
    @property
    def count(self) -> int: ...  # n, the scored positions
    def gradient(self) -> Tensor: ...
    def jvp(self, v: Tensor) -> Any: ...
    def vjp(self, outputs: Any, states: Any = None) -> Tensor: ...
    def gauss_newton(
        self,
        v: Tensor,
        structural: float = 0.0,
        tikhonov: float = 0.0,
        form: str = "matching",
        tap: str = "output",
    ) -> Tensor: ...
    def traffic(self, generator: torch.Generator | None = None) -> Iterator[list[WeightTraffic]]: ...


@runtime_checkable
class Problem(Protocol):
    """What is minimised. `write` is the only thing that changes anything."""

    @property
    def size(self) -> int: ...
    def read(self) -> Tensor: ...
    def write(self, flat: Tensor) -> None: ...
    def scored(self, batch: Batch) -> int: ...
    def characters(self, batch: Batch) -> int: ...
    def loss(self, batch: Batch) -> float: ...
    def linearize(self, batch: Batch) -> Linearization: ...
    def subset(self, batch: Batch, fraction: float, generator: torch.Generator) -> Batch: ...


@dataclass(frozen=True)
class PassSettings:
    """How a linearisation is computed; none of it changes what is computed but for rounding."""

    memory: str | int = "stored"
    precision: str | None = None
    at: Any = "every"  # where a chunk does not say so itself: "every", "last" or a (T, B) mask


class LinearizableProblem:
    """A model that linearises itself (`linearize`, `mean_loss`), such as `rnnewton.RecurrentModel`, as a
    `Problem`.
    """

    def __init__(self, model: nn.Module, passes: PassSettings = PassSettings()) -> None:
        self.model: Any = model  # by duck typing: `linearize` and `mean_loss`
        self.passes = passes
        self._parameters = list(model.parameters())
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        if len(frozen) == len(self._parameters):
            raise ValueError("every parameter is frozen (requires_grad=False): there is nothing to train")
        self._free = _free_mask(self._parameters) if frozen else None

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self._parameters)

    def read(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters])

    def write(self, flat: Tensor) -> None:
        with torch.no_grad():
            for parameter, values in self._pieces(flat):
                parameter.copy_(values)

    def scored(self, batch: Batch) -> int:
        return sum(self._scored(chunk) for chunk in as_chunks(batch))

    def characters(self, batch: Batch) -> int:
        return sum(int(chunk[0].shape[0]) * int(chunk[0].shape[1]) for chunk in as_chunks(batch))

    def loss(self, batch: Batch) -> float:
        inputs, targets, options = self._call(batch)
        return float(self.model.mean_loss(inputs, targets, **options))

    def loss_at(self, flat: Tensor, batch: Batch) -> float:
        """The loss at other weights. The parameters come back to the bit, and no linearisation notices."""
        with self._borrowed(flat):
            return self.loss(batch)

    def linearize(self, batch: Batch) -> Linearization:
        inputs, targets, options = self._call(batch)
        passes = {"memory": self.passes.memory, "precision": self.passes.precision}
        linearization = self.model.linearize(inputs, targets, **options, **passes)
        return linearization if self._free is None else _Frozen(linearization, self._free)

    def subset(self, batch: Batch, fraction: float, generator: torch.Generator) -> Batch:
        """A random share of the sequences of all chunks together; small batches stay whole."""
        chunks = as_chunks(batch)
        widths = [int(chunk[0].shape[1]) for chunk in chunks]
        if fraction >= 1 or self.scored(batch) < WHOLE_BELOW:
            return batch
        chosen = choose(sum(widths), fraction, generator)
        return cut(chunks, widths, chosen)

    def halves(self, batch: Batch, generator: torch.Generator) -> tuple[Batch, Batch] | None:
        """The batch cut at random into two halves of sequences, or None where there is only one."""
        chunks = as_chunks(batch)
        widths = [int(chunk[0].shape[1]) for chunk in chunks]
        total = sum(widths)
        if total < 2:
            return None
        order = torch.randperm(total, generator=generator)
        first, second = order[: total // 2].sort().values, order[total // 2 :].sort().values
        return cut(chunks, widths, first), cut(chunks, widths, second)

    def _pieces(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        sizes = [p.numel() for p in self._parameters]
        for parameter, piece in zip(self._parameters, flat.split(sizes), strict=True):
            yield parameter, piece.view_as(parameter)

    @contextmanager
    def _borrowed(self, flat: Tensor) -> Generator[None]:
        """Weights lent for a loss. `.data` leaves the version counters alone: the point itself does not
        move.
        """
        kept = [p.data for p in self._parameters]
        try:
            for parameter, values in self._pieces(flat):
                parameter.data = values.to(parameter.dtype)
            yield
        finally:
            for parameter, values in zip(self._parameters, kept, strict=True):
                parameter.data = values

    def _scored(self, chunk: tuple[Any, ...]) -> int:
        positions, sequences = int(chunk[0].shape[0]), int(chunk[0].shape[1])
        at = chunk[2] if len(chunk) > 2 and chunk[2] is not None else self.passes.at
        if isinstance(at, Tensor):
            return int(at.sum())
        return sequences if at == "last" else positions * sequences

    def _call(self, batch: Batch) -> tuple[Any, Any, dict[str, Any]]:
        """A batch as the arguments of `linearize`: one value each, or a list over chunks."""
        chunks = as_chunks(batch)
        inputs = [chunk[0] for chunk in chunks]
        targets = [chunk[1] for chunk in chunks]
        ats = [chunk[2] if len(chunk) > 2 and chunk[2] is not None else self.passes.at for chunk in chunks]
        states = [chunk[3] if len(chunk) > 3 else None for chunk in chunks]
        if len(chunks) == 1:
            return inputs[0], targets[0], {"at": ats[0], "state": states[0]}
        same = all(isinstance(at, str) and at == ats[0] for at in ats)
        state = None if all(s is None for s in states) else states
        return inputs, targets, {"at": ats[0] if same else ats, "state": state}


class _Frozen:
    """A linearisation in which some parameters do not move: their gradient and their products are zero."""

    def __init__(self, inner: Linearization, free: Tensor) -> None:
        self._inner = inner
        self.free = free

    @property
    def loss(self) -> Tensor:
        return self._inner.loss

    @property
    def count(self) -> int:
        return self._inner.count

    def gradient(self) -> Tensor:
        return self._inner.gradient() * self.free

    def jvp(self, v: Tensor) -> Any:
        return self._inner.jvp(v * self.free)

    def vjp(self, outputs: Any, states: Any = None) -> Tensor:
        return self._inner.vjp(outputs, states) * self.free

    def gauss_newton(
        self,
        v: Tensor,
        structural: float = 0.0,
        tikhonov: float = 0.0,
        form: str = "matching",
        tap: str = "output",
    ) -> Tensor:
        return self._inner.gauss_newton(v * self.free, structural, tikhonov, form, tap) * self.free

    def traffic(self, generator: torch.Generator | None = None) -> Iterator[list[WeightTraffic]]:
        return self._inner.traffic(generator)


def problem_of(
    module: nn.Module,
    loss: Callable[..., Tensor] | None = None,
    passes: PassSettings = PassSettings(),
    states: list[str] | None = None,
) -> Problem:
    """The problem of training a module: one that linearises itself, or any other module with a loss."""
    if is_recurrent(module):
        if loss is not None:
            raise TypeError(f"{type(module).__name__} has its own loss: leave `loss` out")
        if states is not None:
            raise TypeError(
                f"{type(module).__name__} taps its own hidden states: leave `states` out of rn.Structural"
            )
        return LinearizableProblem(module, passes)
    if loss is None:
        raise TypeError(
            f"{type(module).__name__} needs a loss: HessianFree(module, loss), called as "
            f"loss(module(inputs), targets)"
        )
    from rnnewton.newton.module import ModuleProblem

    if passes.precision is not None:
        raise ValueError(
            f"precision={passes.precision!r} is for recurrent models; a plain module computes in its own "
            f"dtype: use module.double(), module.bfloat16() and so on"
        )
    memory = "stored" if passes.memory == "stored" else "recomputed"
    return ModuleProblem(module, loss, states=states, memory=memory)


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module linearises itself, as `rnnewton.RecurrentModel` does."""
    return callable(getattr(module, "linearize", None)) and callable(getattr(module, "mean_loss", None))


def loss_at(problem: Problem, flat: Tensor, batch: Batch) -> float:
    """The loss at other weights, with the problem's own weights back afterwards, whatever happens."""
    own = getattr(problem, "loss_at", None)
    if own is not None:
        return float(own(flat, batch))
    before = problem.read()
    problem.write(flat)
    try:
        return problem.loss(batch)
    finally:
        problem.write(before)


def _free_mask(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([torch.full_like(p.detach().reshape(-1), float(p.requires_grad)) for p in parameters])
