"""What flows through the linear, embedding and convolution weights of a plain module, as a preconditioner
wants it.

B: examples (dimension 0), T: the positions of one example, C: classes, n: scored elements. A plain module
has examples first; here they become sequences: (B, ..., features) is laid out as (T, B, features).

Targets are drawn from the model's own outputs, so that the deltas d at the outputs have mean 0 and
covariance n·H: categorical for cross-entropy; for losses that act on each element alone, normal with
variance n·∂²loss/∂z². A loss that is not known has no distribution to draw from, and the true targets are
taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from rnnewton.newton.module_losses import class_dimension
from rnnewton.newton.module_passes import Name
from rnnewton.newton.module_point import ChunkPoint
from rnnewton.newton.problem import WeightTraffic

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True)
class Layer:
    """A layer whose weight is its own alone, and where weight and bias lie in the flat vector."""

    name: Name
    module: nn.Module
    weight: int
    bias: int | None


def find_layers(module: nn.Module, starts: Mapping[Name, int]) -> dict[Name, Layer]:
    """Linear, embedding and convolution layers with a trained weight that no other place shares."""
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    layers: dict[Name, Layer] = {}
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        weight = starts.get(f"{prefix}weight")
        if weight is None or not _is_known(part) or owners.get(id(part.weight)) != 1:
            continue
        bias = starts.get(f"{prefix}bias")
        own = bias is not None and owners.get(id(part.bias)) == 1
        layers[name] = Layer(name, part, weight, bias if own else None)
    return layers


def _is_known(part: nn.Module) -> bool:
    if isinstance(part, _CONVOLUTIONS):
        return part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
    return isinstance(part, nn.Linear) or (isinstance(part, nn.Embedding) and part.max_norm is None)


def chunk_traffic(
    point: ChunkPoint,
    layers: Mapping[Name, Layer],
    divisor: float,
    count: int,
    generator: torch.Generator | None,
) -> Iterator[WeightTraffic]:
    """One chunk's traffic. `divisor` is that of the whole batch's loss, `count` its n."""
    deltas = output_deltas(point, divisor, count, generator)
    for name, calls in point.cotangents_of_layers(deltas).items():
        layer = layers[name]
        laid = [_lay_out(layer.module, inputs, delta) for inputs, delta in calls]
        if len({(inputs.shape[1], delta.shape[1]) for inputs, delta in laid}) > 1:
            continue  # called on different numbers of examples: no sequence to sum over
        inputs = torch.cat([a for a, _ in laid])
        flowing = torch.cat([d for _, d in laid])
        rows = flowing.shape[2]
        weight = layer.module.weight
        assert isinstance(weight, Tensor)
        columns = weight.numel() // rows
        transposed = isinstance(layer.module, nn.Embedding)
        label = f"{name}.weight".lstrip(".")
        yield WeightTraffic(label, layer.weight, rows, columns, inputs, flowing, transposed)
        if layer.bias is not None:
            ones = flowing.new_ones(*flowing.shape[:2], 1)
            yield WeightTraffic(f"{name}.bias".lstrip("."), layer.bias, rows, 1, ones, flowing)


def output_deltas(
    point: ChunkPoint, divisor: float, count: int, generator: torch.Generator | None
) -> list[Tensor]:
    """Cotangents at the outputs, not divided by n: of drawn targets, or of the true ones where `generator`
    is None."""
    loss = point.frame.loss
    scale = count / divisor if loss.reduction == "sum" else count / divisor * _own_divisor(point)
    known = loss.kind in ("cross-entropy", "elementwise") and len(point.outputs) == 1
    if generator is None or not known:
        return [scale * slope for slope in point.slopes()]
    if loss.kind == "elementwise":
        variance = scale * point.curve([torch.ones_like(point.outputs[0])])[0]
        return [variance.clamp_min(0).sqrt() * _normal(point.outputs[0], generator)]
    return [_drawn_classes(point, count / divisor, generator)]


def _own_divisor(point: ChunkPoint) -> float:
    return point.frame.loss.scored(point.inputs, point.targets).divisor


def _drawn_classes(point: ChunkPoint, scale: float, generator: torch.Generator) -> Tensor:
    """√weight · (p − one-hot of a drawn class) at each position; zero where the target is ignored."""
    logits = point.outputs[0].detach()
    classes = class_dimension(logits)
    probabilities = logits.softmax(classes).movedim(classes, -1)
    cumulative = probabilities.float().cumsum(-1)
    shape = (*cumulative.shape[:-1], 1)
    uniform = torch.rand(shape, generator=generator, device=generator.device).to(cumulative)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[..., -1:])
    drawn = drawn.clamp_max(logits.shape[classes] - 1)
    deltas = probabilities - torch.zeros_like(probabilities).scatter_(-1, drawn, 1.0)
    target = next(leaf for leaf in pytree.tree_leaves(point.targets) if isinstance(leaf, Tensor))
    weights = (scale * point.frame.loss.position_weights(logits, target)).sqrt()
    return (deltas * weights.unsqueeze(-1)).movedim(-1, classes)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like)


def _lay_out(part: nn.Module, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Input (T, B, columns) or symbols (T, B), and delta (T, B, rows), of one call."""
    if isinstance(part, _CONVOLUTIONS):
        return _unfolded(part, inputs), _positions_first(
            delta if delta.ndim == _spatial(part) + 2 else delta[None]
        )
    if isinstance(part, nn.Embedding):
        symbols = inputs.reshape(inputs.shape[0], -1) if inputs.ndim > 0 else inputs.reshape(1, 1)
        flowing = delta.reshape(*symbols.shape, delta.shape[-1])
        if part.padding_idx is not None:
            flowing = flowing * (symbols != part.padding_idx).unsqueeze(-1)
        return symbols.mT.contiguous(), flowing.transpose(0, 1)
    if inputs.ndim == 1:
        inputs, delta = inputs[None], delta[None]
    examples = inputs.shape[0]
    laid = [x.reshape(examples, -1, x.shape[-1]).transpose(0, 1) for x in (inputs, delta)]
    return laid[0], laid[1]


def _spatial(part: nn.Module) -> int:
    return 1 if isinstance(part, nn.Conv1d) else 2


def _unfolded(part: nn.Module, inputs: Tensor) -> Tensor:
    """The patches that a convolution multiplies: (positions, B, in · kernel)."""
    assert isinstance(part, _CONVOLUTIONS)
    inputs = inputs if inputs.ndim == _spatial(part) + 2 else inputs[None]
    sizes: list[Any] = [part.kernel_size, part.dilation, part.padding, part.stride]
    if isinstance(part, nn.Conv1d):
        inputs = inputs.unsqueeze(2)
        sizes = [(neutral, *own) for neutral, own in zip((1, 1, 0, 1), sizes, strict=True)]
    kernel, dilation, padding, stride = sizes
    return functional.unfold(inputs, kernel, dilation, padding, stride).permute(2, 0, 1)


def _positions_first(delta: Tensor) -> Tensor:
    """(B, rows, ...) as (positions, B, rows)."""
    return delta.flatten(2).permute(2, 0, 1)
