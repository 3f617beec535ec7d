"""What a plain module must not do under conjugate gradient, found before the first product and said in one
sentence.

CG multiplies by one matrix many times: the module must be one fixed function of its weights on a batch, and
its loss convex.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rnnewton.newton.module_point import ChunkPoint

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_LANCZOS_STEPS = 6


def check_parameters(parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("every parameter is frozen (requires_grad=False): there is nothing to train")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"parameter {name!r} has no shape yet: call the module once on a batch first")
        if not parameter.is_floating_point():
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}; only real floating point can be trained"
            )
    kinds = {(p.dtype, p.device) for p in parameters.values()}
    if len(kinds) > 1:
        given = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(f"the parameters are {given}: move them to one dtype and one device")


def check_modes(module: nn.Module) -> None:
    """Known layers that draw random numbers, or that mix the examples of a batch, in their present mode."""
    for name, part in module.named_modules():
        if isinstance(part, _BATCH_NORM) and (part.training or part.running_mean is None):
            raise ValueError(
                f"{_called(name, part)} normalises by the batch's own statistics, so that the loss of one "
                f"example depends on the others; call eval() on it, or use GroupNorm or LayerNorm"
            )
        rate = _random_rate(part)
        if part.training and rate > 0:
            raise ValueError(
                f"{_called(name, part)} drops units at random (p={rate}): conjugate gradient needs one fixed "
                f"function within a step; call eval() on it, or set its rate to 0"
            )
        if part.training and isinstance(part, nn.RReLU) and part.lower != part.upper:
            raise ValueError(f"{_called(name, part)} has random slopes in train mode; call eval() on it")


def check_repeatable(first: tuple[Any, Tensor], second: tuple[Any, Tensor]) -> None:
    """Outputs and loss of two calls on the same chunk: whatever draws random numbers or keeps state shows
    here."""
    leaves = [[x for x in pytree.tree_leaves(run) if isinstance(x, Tensor)] for run in (first, second)]
    for a, b in zip(*leaves, strict=True):
        if a.shape == b.shape and not a.is_floating_point():
            same = torch.equal(a, b)
        else:
            tolerance = torch.finfo(a.dtype).eps ** 0.5 if a.is_floating_point() else 0.0
            scale = float(a.detach().abs().nan_to_num().max()) if a.numel() else 0.0
            same = a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)
        if not same:
            raise ValueError(
                "the module or the loss gives different values when called twice on the same batch: it draws "
                "random numbers, or keeps state between calls; conjugate gradient needs one fixed function "
                "within a step; make it deterministic, for example with eval()"
            )


def check_convex(point: ChunkPoint) -> None:
    """A user's loss: some curvature, and none of it negative, by a few Lanczos steps on H at the first
    chunk."""
    loss = point.frame.loss
    if loss.kind != "user":
        return
    extremes = _extreme_curvatures(point)
    if extremes is None:
        raise ValueError(
            "the loss has no curvature in the module's outputs on this batch: it is linear there, as an "
            "absolute error is, or a negative log-likelihood in log-probabilities; Gauss-Newton needs a "
            "convex, curved loss: give logits to nn.CrossEntropyLoss, or use nn.HuberLoss"
        )
    low, high = extremes
    if low < -1e-3 * max(abs(high), abs(low)):
        raise ValueError(
            f"the loss is not convex in the module's outputs (curvature from {low:.3g} to {high:.3g} on this "
            f"batch): Gauss-Newton needs a convex loss; move the non-convex part into the module"
        )


def _extreme_curvatures(point: ChunkPoint) -> tuple[float, float] | None:
    """The smallest and the largest Ritz value of H; None where H is zero on a random direction."""
    sizes = [z.numel() for z in point.outputs]
    generator = torch.Generator().manual_seed(0)  # the check's own: nobody's random state moves
    vector = torch.randn(sum(sizes), generator=generator, dtype=torch.float64).to(point.outputs[0])
    basis: list[Tensor] = [vector / vector.norm()]
    columns: list[Tensor] = []
    for _ in range(min(_LANCZOS_STEPS, sum(sizes))):
        pieces = basis[-1].split(sizes)
        curved = point.curve([piece.view_as(z) for piece, z in zip(pieces, point.outputs, strict=True)])
        product = torch.cat([part.reshape(-1) for part in curved])
        if len(basis) == 1 and not bool(product.any()):
            return None
        columns.append(product)
        rest = product
        for _ in range(2):  # twice is enough to stay orthogonal
            for b in basis:
                rest = rest - torch.dot(b, rest) * b
        if float(rest.norm()) <= 1e-6 * float(product.norm()):
            break
        basis.append(rest / rest.norm())
    q = torch.stack(basis[: len(columns)])
    small = (q @ torch.stack(columns).mT).double()
    values = torch.linalg.eigvalsh((small + small.mT) / 2)
    return float(values[0]), float(values[-1])


def _random_rate(part: nn.Module) -> float:
    if isinstance(part, _DROPOUT):
        return float(part.p)
    if isinstance(part, nn.RNNBase):
        return float(part.dropout) if part.num_layers > 1 else 0.0
    return float(part.dropout) if isinstance(part, nn.MultiheadAttention) else 0.0


def _called(name: str, part: nn.Module) -> str:
    return f"{type(part).__name__} {name!r}" if name else type(part).__name__
