"""How a weight matrix multiplies: by torch, in the precision asked for. Prepared once per linearisation.

Legend: W (rows, columns), rows = to, columns = from; x (N, columns); d (N, rows).
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


class Matrix(NamedTuple):
    """W as it is."""

    weight: Tensor

    def carry(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight.T)

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(base, x, self.weight.T)

    def back(self, d: Tensor) -> Tensor:
        return torch.mm(d, self.weight)


class HalfMatrix(NamedTuple):
    """W and what it meets rounded to bf16; the results are float32 again."""

    weight: Tensor  # bf16

    def carry(self, x: Tensor) -> Tensor:
        return torch.mm(x.bfloat16(), self.weight.T).float()

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        return base + self.carry(x)

    def back(self, d: Tensor) -> Tensor:
        return torch.mm(d.bfloat16(), self.weight).float()


AnyMatrix = Matrix | HalfMatrix


class Arithmetic(NamedTuple):
    """The number format of the products; sums over many terms stay in `dtype`."""

    dtype: torch.dtype
    half: bool = False
    tf32: bool = False

    def matrix(self, weight: Tensor) -> AnyMatrix:
        return HalfMatrix(weight.bfloat16()) if self.half else Matrix(weight)

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


def arithmetic_of(precision: str | None, own: torch.dtype) -> Arithmetic:
    if precision is None:
        return Arithmetic(own)
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not known; take None or one of {', '.join(PRECISIONS)}")
    dtype = torch.float64 if precision == "fp64" else torch.float32
    return Arithmetic(dtype, half=precision == "bf16", tf32=precision == "tf32")
