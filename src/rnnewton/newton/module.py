"""Any nn.Module with a convex loss as a `Problem`: feed-forward, convolutional, attention, nn.LSTM and
nn.GRU.

p: trained parameters, B: examples, dimension 0 of a plain module's inputs and targets; n: scored elements.

Frozen parameters are left out of the flat vector, tied ones are in it once. The module's buffers and modes
are never touched.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rnnewton.newton.module_checks import check_modes, check_parameters, check_repeatable
from rnnewton.newton.module_linearization import ModuleLinearization
from rnnewton.newton.module_losses import Loss, OutputLoss
from rnnewton.newton.module_passes import Name, run
from rnnewton.newton.module_traffic import find_layers
from rnnewton.newton.problem import WHOLE_BELOW, Batch, as_chunks, choose

Chunk = tuple[Any, Any]


class ModuleProblem:
    """Called as loss(module(inputs), targets), or loss(module(*inputs), targets) where inputs is a tuple."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        states: list[str] | None = None,
        memory: str = "stored",  # "recomputed": a list of chunks keeps no graph between products
        forward_mode: bool = False,  # products by dual numbers, torch.func.jvp's way: slower
    ) -> None:
        if memory not in ("stored", "recomputed"):
            raise ValueError(f"memory={memory!r} must be 'stored' or 'recomputed' for a plain module")
        self.module = module
        self.loss_function = OutputLoss(loss)
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        check_parameters(self._parameters)
        self.frame = _ModuleFrame(module, self.loss_function, self._parameters, _submodules(module, states))
        self.frame.forward_mode = forward_mode or memory == "recomputed"
        self._stored = memory == "stored"
        self._layers = find_layers(module, self._starts())
        self.frame.layers = {name: layer.module for name, layer in self._layers.items()}
        # the modes in which the module was found to be one fixed function
        self._checked: tuple[bool, ...] | None = None

    # -- weights -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self._parameters.values())

    def read(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters.values()])

    def write(self, flat: Tensor) -> None:
        with torch.no_grad():
            for name, values in self._pieces(flat).items():
                self._parameters[name].copy_(values)

    def _pieces(self, flat: Tensor) -> dict[Name, Tensor]:
        if flat.shape != (self.size,):
            raise ValueError(f"got a vector of shape {tuple(flat.shape)}; the parameters are ({self.size},)")
        pieces = flat.split([p.numel() for p in self._parameters.values()])
        return {name: v.view_as(p) for (name, p), v in zip(self._parameters.items(), pieces, strict=True)}

    def _starts(self) -> dict[Name, int]:
        starts: dict[Name, int] = {}
        position = 0
        for name, parameter in self._parameters.items():
            starts[name] = position
            position += parameter.numel()
        return starts

    # -- batches -------------------------------------------------------------------------------------------

    def scored(self, batch: Batch) -> int:
        return sum(self.loss_function.scored(*chunk).elements for chunk in _pairs(batch))

    def characters(self, batch: Batch) -> int:
        """The unit of work: what is scored."""
        return self.scored(batch)

    def subset(self, batch: Batch, fraction: float, generator: torch.Generator) -> Batch:
        """A random share of the examples; the whole batch where it is small, or where there is no common
        dimension 0."""
        chunks = _pairs(batch)
        lengths = [_examples(chunk) for chunk in chunks]
        if fraction >= 1 or None in lengths or self.scored(batch) < WHOLE_BELOW:
            return batch
        known = [length for length in lengths if length is not None]
        return _rows(chunks, known, choose(sum(known), fraction, generator))

    def halves(self, batch: Batch, generator: torch.Generator) -> tuple[Batch, Batch] | None:
        """The examples cut at random into two halves, or None where that cannot be done."""
        chunks = _pairs(batch)
        lengths = [_examples(chunk) for chunk in chunks]
        known = [length for length in lengths if length is not None]
        total = sum(known)
        if len(known) < len(lengths) or total < 2:
            return None
        order = torch.randperm(total, generator=generator, device=generator.device)
        cuts = (order[: total // 2].sort().values, order[total // 2 :].sort().values)
        return _rows(chunks, known, cuts[0]), _rows(chunks, known, cuts[1])

    # -- the function --------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> float:
        return self._loss(self.frame.weights(), batch)

    def loss_at(self, flat: Tensor, batch: Batch) -> float:
        """The loss at other weights; the module's own are not touched."""
        return self._loss(self._pieces(flat), batch)

    def _loss(self, weights: dict[Name, Tensor], batch: Batch) -> float:
        chunks = _pairs(batch)
        self._check(chunks[0])
        mean = self.loss_function.reduction == "mean"
        total, divisor = 0.0, 0.0
        for inputs, targets in chunks:
            scored = self.loss_function.scored(inputs, targets)
            if scored.elements:
                factor = scored.divisor if mean else 1.0
                total += factor * float(self._evaluated(weights, inputs, targets)[1])
                divisor += scored.divisor if mean else scored.elements
        if divisor == 0:
            raise ValueError("the batch has no scored element: every target is ignored")
        return total / divisor

    def linearize(self, batch: Batch) -> ModuleLinearization:
        chunks = _pairs(batch)
        self._check(chunks[0])
        return ModuleLinearization(self.frame, chunks, self._layers, self._stored)

    def _evaluated(self, weights: dict[Name, Tensor], inputs: Any, targets: Any) -> tuple[Any, Tensor]:
        with torch.no_grad():
            detached = {name: w.detach() for name, w in weights.items()}
            outputs = run(self.module, detached, inputs)
            return outputs, self.loss_function.in_float64(outputs, targets)

    def _check(self, chunk: Chunk) -> None:
        """Whether the module is one fixed function, once for every combination of train and eval modes it
        is seen in."""
        modes = tuple(part.training for part in self.module.modules())
        if modes == self._checked:
            return
        check_modes(self.module)
        weights = self.frame.weights()
        devices = [p.device for p in self._parameters.values() if p.is_cuda][:1]
        with torch.random.fork_rng(devices=devices):
            first = self._evaluated(weights, *chunk)
            second = self._evaluated(weights, *chunk)
        check_repeatable(first, second)
        self._checked = modes


class _ModuleFrame:
    """What all linearisations of one problem share (`module_point.Frame`)."""

    def __init__(
        self,
        module: nn.Module,
        loss: OutputLoss,
        parameters: dict[Name, nn.Parameter],
        states: dict[Name, nn.Module],
    ) -> None:
        self.module, self.loss, self.states = module, loss, states
        self.layers: dict[Name, nn.Module] = {}
        self.forward_mode = False
        self.transposes = False  # whether second derivatives have been looked at
        self.convex = False  # whether the loss has been looked at
        self._parameters = parameters

    def weights(self) -> dict[Name, Tensor]:
        return dict(self._parameters)


def _submodules(module: nn.Module, names: list[str] | None) -> dict[Name, nn.Module]:
    known = dict(module.named_modules())
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        listed = ", ".join(repr(name) for name in known if name)
        raise ValueError(f"states={unknown} are not submodules of {type(module).__name__}; it has {listed}")
    return {name: known[name] for name in names or []}


def _pairs(batch: Batch) -> list[Chunk]:
    chunks = as_chunks(batch)
    for chunk in chunks:
        if len(chunk) != 2:
            raise TypeError(
                f"a plain module's chunk is (inputs, targets); got a tuple of {len(chunk)}: several inputs "
                f"go into one tuple, ((first, second), targets)"
            )
    return [(chunk[0], chunk[1]) for chunk in chunks]


def _examples(chunk: Chunk) -> int | None:
    """The common length of dimension 0 of every tensor of a chunk; None where there is none."""
    leaves = [leaf for leaf in pytree.tree_leaves(chunk) if isinstance(leaf, Tensor)]
    lengths = {int(leaf.shape[0]) if leaf.ndim else -1 for leaf in leaves}
    return lengths.pop() if len(lengths) == 1 and -1 not in lengths else None


def _rows(chunks: list[Chunk], lengths: list[int], chosen: Tensor) -> list[Chunk]:
    """The chosen examples of every chunk, counted through all chunks."""
    result: list[Chunk] = []
    start = 0
    for chunk, length in zip(chunks, lengths, strict=True):
        mine = chosen[(chosen >= start) & (chosen < start + length)] - start
        if len(mine):
            result.append(pytree.tree_map(partial(_select, mine), chunk))
        start += length
    return result


def _select(index: Tensor, leaf: Any) -> Any:
    return leaf.index_select(0, index.to(leaf.device)) if isinstance(leaf, Tensor) else leaf
