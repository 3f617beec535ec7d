"""Conjugate gradient, one iterate at a time, so that whoever asks for the next one can watch, alter or stop
the run.

p: number of parameters. Vectors are (p,). Minimises q(x) = ½ xᵀAx + bᵀx from the products Av alone.

The thesis's form (chapter 3.2): α = −Sᵀ(Ax + b) / SᵀAS and β = (Ax + b)ᵀAS / SᵀAS, which stay right when
x₀ ≠ 0 and when the preconditioner is not quite constant. With a preconditioner M the residual in S and β is
M⁻¹(Ax + b).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rnnewton.newton.vector import dot

ZERO_RESIDUAL = "zero residual"
NON_FINITE = "non-finite"
NEGATIVE_CURVATURE = "negative curvature"
NO_CURVATURE = "no curvature"


@dataclass(frozen=True)
class Iterate:
    index: int  # 0 is the initial guess
    x: Tensor
    residual: Tensor  # Ax + b
    q: float  # q(x)
    direction: Tensor | None = None  # S, along which x was reached
    product: Tensor | None = None  # AS
    alpha: float = 0.0
    ended: str | None = None  # why CG cannot go on from here


def conjugate_gradient(
    multiply: Callable[[Tensor], Tensor],
    slope: Tensor,
    start: Tensor | None = None,
    solve: Callable[[Tensor], Tensor] | None = None,
    refresh: int = 50,
) -> Iterator[Iterate]:
    """Iterates x₀, x₁, … without end; where CG cannot go on, the last good one comes once more with `ended`
    set.

    One product for each, one more for x₀ ≠ 0 and for the true residual every `refresh` iterations; one read
    by the host.
    """
    precondition = solve or _same
    iterate = _first(multiply, slope, start)
    yield iterate
    direction = -precondition(iterate.residual)
    while True:
        product = multiply(direction)
        curvature, along, size = _read(
            dot(direction, product), dot(direction, iterate.residual), dot(iterate.residual, iterate.residual)
        )
        ended = _obstacle(curvature, along, size, iterate.q)
        if ended is not None:
            yield replace(iterate, ended=ended)
            return
        iterate = _advanced(iterate, direction, product, along, curvature)
        if iterate.index % refresh == 0:
            iterate = _refreshed(iterate, multiply, slope)
        yield iterate
        preconditioned = precondition(iterate.residual)
        beta = (dot(preconditioned, product) / curvature).to(direction.dtype)
        direction = beta * direction - preconditioned


def _first(multiply: Callable[[Tensor], Tensor], slope: Tensor, start: Tensor | None) -> Iterate:
    if start is None:
        return Iterate(0, torch.zeros_like(slope), slope, 0.0)
    residual = multiply(start) + slope
    return Iterate(0, start, residual, float(0.5 * dot(start, residual + slope)))


def _advanced(before: Iterate, direction: Tensor, product: Tensor, along: float, curvature: float) -> Iterate:
    alpha = -along / curvature
    return Iterate(
        index=before.index + 1,
        x=before.x + alpha * direction,
        residual=before.residual + alpha * product,
        q=before.q - 0.5 * along * along / curvature,
        direction=direction,
        product=product,
        alpha=alpha,
    )


def _refreshed(iterate: Iterate, multiply: Callable[[Tensor], Tensor], slope: Tensor) -> Iterate:
    """The true residual in the place of the one carried along, and q from it."""
    residual = multiply(iterate.x) + slope
    return replace(iterate, residual=residual, q=float(0.5 * dot(iterate.x, residual + slope)))


def _obstacle(curvature: float, along: float, size: float, q: float) -> str | None:
    if size == 0:
        return ZERO_RESIDUAL
    if not all(map(math.isfinite, (curvature, along, size, q))):
        return NON_FINITE
    if curvature < 0:
        return NEGATIVE_CURVATURE
    if curvature == 0 or not math.isfinite(along * along / curvature):
        return NO_CURVATURE
    return None


def _read(*values: Tensor) -> list[float]:
    """Several scalars in one transfer."""
    return torch.stack(values).tolist()


def _same(residual: Tensor) -> Tensor:
    return residual
