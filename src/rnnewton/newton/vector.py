"""Inner products of flat vectors, in float64 and in one order of adding, so that threads change nothing.

p: number of parameters.
"""

from __future__ import annotations

from torch import Tensor

_BLOCK = 4096


def dot(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb of two (p,) vectors as a float64 scalar. Rows of one length are added first, each by one thread."""
    products = a.double() * b.double()
    whole = products.numel() // _BLOCK * _BLOCK
    total = products[whole:].sum()
    if whole:
        total = total + products[:whole].view(-1, _BLOCK).sum(1).sum()
    return total


def norm(a: Tensor) -> Tensor:
    """The Euclidean norm of a (p,) vector as a float64 scalar."""
    return dot(a, a).sqrt()
