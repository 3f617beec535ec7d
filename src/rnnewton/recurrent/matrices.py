"""How a weight matrix multiplies: in the precision asked for, by the route asked for. Prepared once per
linearisation.

Legend: W (rows, columns), rows = to, columns = from; x (N, columns); d (N, rows).
`into`: where a route may write its result instead of taking fresh memory. `onto` may overwrite its base in
every route but the plain one, which autograd can follow.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
ROUTES = ("plain", "onednn")


class Matrix(Protocol):
    @property
    def weight(self) -> Tensor: ...
    def carry(self, x: Tensor, into: Tensor | None = None) -> Tensor: ...  # x Wᵀ
    def onto(self, base: Tensor, x: Tensor) -> Tensor: ...  # base + x Wᵀ
    def back(self, d: Tensor, into: Tensor | None = None) -> Tensor: ...  # d W


class PlainMatrix(NamedTuple):
    """W as it is, by torch.mm."""

    weight: Tensor

    def carry(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.mm(x, self.weight.T, out=into)

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(base, x, self.weight.T)

    def back(self, d: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.mm(d, self.weight, out=into)


class InPlaceMatrix(PlainMatrix):
    """The same, saving the copy of the base."""

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return base.addmm_(x, self.weight.T)


class HalfMatrix(NamedTuple):
    """W and what it meets rounded to bf16; the results are float32 again."""

    weight: Tensor  # bf16

    def carry(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.mm(x.bfloat16(), self.weight.T).float()

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return base + torch.mm(x.bfloat16(), self.weight.T)

    def back(self, d: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.mm(d.bfloat16(), self.weight).float()


class OneDnnMatrix(NamedTuple):
    """By oneDNN: on some processors twice as fast as the library behind torch.mm."""

    weight: Tensor
    transposed: Tensor  # Wᵀ, contiguous

    def carry(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, base, self.weight, None, "add")

    def back(self, d: Tensor, into: Tensor | None = None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(d, self.transposed, None, "none", [], "")


class Arithmetic(NamedTuple):
    """The number format of the products; sums over many terms stay in `dtype`."""

    dtype: torch.dtype
    half: bool = False
    tf32: bool = False
    in_place: bool = False  # whether `onto` may overwrite: not where autograd follows
    route: str = "plain"

    def matrix(self, weight: Tensor) -> Matrix:
        if self.half:
            return HalfMatrix(weight.bfloat16())
        if self.route == "onednn" and self.in_place and onednn_takes(weight):
            return OneDnnMatrix(weight, weight.T.contiguous())
        return InPlaceMatrix(weight) if self.in_place else PlainMatrix(weight)

    def outer(self, into: Tensor, d: Tensor, a: Tensor) -> None:
        """into (rows, columns) += dᵀ a, over all N."""
        if self.half:
            into.add_(torch.mm(d.bfloat16().T, a.bfloat16()))
        else:
            into.addmm_(d.T, a)

    @contextmanager
    def active(self, device: torch.device) -> Generator[None]:
        """TF32 is a switch of torch's; it is set for these products only."""
        if not (self.tf32 and device.type == "cuda"):
            yield
            return
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def arithmetic_of(precision: str | None, own: torch.dtype, route: str = "plain") -> Arithmetic:
    if route not in ROUTES:
        raise ValueError(f"route={route!r} is not known; take one of {', '.join(ROUTES)}")
    if precision is None:
        return Arithmetic(own, route=route)
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not known; take None or one of {', '.join(PRECISIONS)}")
    dtype = torch.float64 if precision == "fp64" else torch.float32
    return Arithmetic(dtype, half=precision == "bf16", tf32=precision == "tf32", route=route)


def onednn_takes(weight: Tensor) -> bool:
    """Whether oneDNN has this product: float32 on the CPU, in a torch that was built with it."""
    return (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    )
