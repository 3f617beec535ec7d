"""A plain module at one point on one batch: loss, gradient, Gauss-Newton products, traffic.

p: number of parameters, n: scored elements of all chunks together, z: outputs, s: tapped states. Chunk c's
loss L_c counts with α_c = divisor_c / Σ divisors for a mean, 1/n for a sum: the loss of a list of chunks is
that of one batch of all of them.

    G v = Σ_c α_c J_zᵀ H_c J_z v + (mu / n) J_sᵀ J_s v + lambda v
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rnnewton.newton.module_checks import check_convex
from rnnewton.newton.module_losses import Scored
from rnnewton.newton.module_passes import Name
from rnnewton.newton.module_point import ChunkPoint, Frame
from rnnewton.newton.module_traffic import Layer, chunk_traffic
from rnnewton.newton.problem import WeightTraffic

Version = tuple[tuple[int, int], ...]


class ModuleLinearization:
    """One chunk keeps its graph from the start; many keep theirs from the first product on, or never
    ("recomputed")."""

    def __init__(
        self,
        frame: Frame,
        chunks: Sequence[tuple[Any, Any]],
        layers: Mapping[Name, Layer],
        stored: bool = True,
    ) -> None:
        self._frame, self._chunks, self._layers, self._stored = frame, list(chunks), layers, stored
        self._scored = [frame.loss.scored(inputs, targets) for inputs, targets in chunks]
        self._version = version_of(frame)
        self._points: dict[int, ChunkPoint] = {}
        self._loss: Tensor | None = None
        self._gradient: Tensor | None = None
        if self.count == 0:
            raise ValueError("the batch has no scored element: every target is ignored")

    @property
    def count(self) -> int:
        return sum(scored.elements for scored in self._scored)

    @property
    def loss(self) -> Tensor:
        if self._loss is None:
            self._measure()
        assert self._loss is not None
        return self._loss

    def gradient(self) -> Tensor:
        if self._gradient is None:
            self._measure()
        assert self._gradient is not None
        return self._gradient.clone()

    def gauss_newton(
        self,
        v: Tensor,
        structural: float = 0.0,
        tikhonov: float = 0.0,
        form: str = "matching",
        tap: str = "output",
    ) -> Tensor:
        """The damped product. `form` and `tap` belong to recurrent models: states of a module are damped as
        they are."""
        if structural and not self._frame.states:
            raise ValueError(
                "structural damping needs to know which states to hold still: give states=[names of "
                "submodules], or damp a plain module with rn.Tikhonov"
            )
        product = tikhonov * v
        for point, factor in self._each():
            outputs, taps = point.jvp(v)
            curved = [factor * h for h in point.curve(outputs)]
            held = [structural / self.count * tap for tap in taps] if structural else []
            product = product + point.vjp(curved, held)
        return product

    def jvp(self, v: Tensor) -> Any:
        """R(outputs) in the module's own structure, and R(states), a list: a pair for one chunk, a list of
        pairs for many."""
        pairs: list[tuple[Any, list[Tensor]]] = []
        for point, _ in self._each():
            outputs, taps = point.jvp(v)
            pairs.append((point.nest(outputs), taps))
        return pairs[0] if len(self._chunks) == 1 else pairs

    def vjp(self, outputs: Any, states: Any = None) -> Tensor:
        """Jᵀ of cotangents in the structure that `jvp` gives: for many chunks, lists of one entry a chunk."""
        single = len(self._chunks) == 1
        all_outputs = [outputs] if single else list(outputs)
        all_states = [states] if single else list(states or [None] * len(self._chunks))
        total: Tensor | None = None
        for (point, _), z, s in zip(self._each(), all_outputs, all_states, strict=True):
            part = point.vjp(point.unnest(z), list(s or ()))
            total = part if total is None else total + part
        assert total is not None
        return total

    def traffic(self, generator: torch.Generator | None = None) -> Iterator[list[WeightTraffic]]:
        for point, _ in self._each():
            yield list(chunk_traffic(point, self._layers, self._divisor(), self.count, generator))

    # -- chunks --------------------------------------------------------------------------------------------

    def _each(self) -> Iterator[tuple[ChunkPoint, float]]:
        """Chunks that score anything, with their factors α."""
        self._check_alive()
        for index, scored in enumerate(self._scored):
            if scored.elements:
                yield self._point(index, keep=self._stored or len(self._chunks) == 1), self._factor(scored)

    def _measure(self) -> None:
        """Loss and gradient in one sweep: what the gradient batch is linearised for, one graph at a time."""
        self._check_alive()
        loss: Tensor | None = None
        gradient: Tensor | None = None
        for index, scored in enumerate(self._scored):
            if not scored.elements:
                continue
            point, factor = self._point(index, keep=len(self._chunks) == 1), self._factor(scored)
            part = factor * point.vjp(point.slopes())
            value = factor * point.loss
            loss = value if loss is None else loss + value
            gradient = part if gradient is None else gradient + part
        self._loss, self._gradient = loss, gradient

    def _point(self, index: int, keep: bool) -> ChunkPoint:
        if index in self._points:
            return self._points[index]
        point = ChunkPoint(self._frame, *self._chunks[index])
        if not self._frame.convex:
            check_convex(point)
            self._frame.convex = True
        if keep:
            self._points[index] = point
        return point

    def _divisor(self) -> float:
        mean = self._frame.loss.reduction == "mean"
        return sum(scored.divisor for scored in self._scored) if mean else float(self.count)

    def _factor(self, scored: Scored) -> float:
        return (scored.divisor if self._frame.loss.reduction == "mean" else 1.0) / self._divisor()

    def _check_alive(self) -> None:
        if version_of(self._frame) != self._version:
            raise RuntimeError(
                "the parameters have changed since this linearisation was made: it belongs to the old point; "
                "call linearize again"
            )


def version_of(frame: Frame) -> Version:
    """Changes when a parameter is written in place or replaced."""
    return tuple((w._version, w.data_ptr()) for w in frame.weights().values())
