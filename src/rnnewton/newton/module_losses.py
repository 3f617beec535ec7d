"""The loss of a plain module as the optimiser sees it: its reduction, what it scores, its curvature in the
outputs.

z: the module's outputs (any nest of tensors), n: scored elements, C: classes. A loss is called as loss(z,
targets) and gives one number. It must be convex in z, and curved: Gauss-Newton knows a network only through
H = ∂²loss/∂z².
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

Loss = Callable[..., Tensor]

# Each output element has its own term: H is diagonal.
_ELEMENTWISE = (
    nn.MSELoss,
    nn.BCEWithLogitsLoss,
    nn.BCELoss,
    nn.HuberLoss,
    nn.SmoothL1Loss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
)
_FLAT = {
    nn.L1Loss: "it is piecewise linear; nn.HuberLoss or nn.SmoothL1Loss is close to it and curved",
    nn.NLLLoss: "it is linear in log-probabilities; leave out the LogSoftmax and use nn.CrossEntropyLoss",
    nn.KLDivLoss: "it is linear in log-probabilities; give logits to nn.CrossEntropyLoss, which takes "
    "probabilities as targets",
    nn.MultiMarginLoss: "it is piecewise linear; use nn.CrossEntropyLoss",
    nn.MultiLabelMarginLoss: "it is piecewise linear; use nn.BCEWithLogitsLoss",
    nn.HingeEmbeddingLoss: "it is piecewise linear; use nn.SoftMarginLoss",
}
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.mse_loss: nn.MSELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.binary_cross_entropy: nn.BCELoss,
    functional.huber_loss: nn.HuberLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
    functional.l1_loss: nn.L1Loss,
    functional.nll_loss: nn.NLLLoss,
    functional.kl_div: nn.KLDivLoss,
}
IGNORED = -100  # torch's own mark of a target that does not count


@dataclass(frozen=True)
class Scored:
    """What one chunk's targets count: `elements` in reports and batch sizes, `divisor` in the loss's own
    mean."""

    elements: int
    divisor: float


class OutputLoss:
    """A loss with what is known about it: "cross-entropy", "elementwise", or "user" (anything else)."""

    def __init__(self, loss: Loss) -> None:
        loss = _as_module(loss)
        for kind, why in _FLAT.items():
            if type(loss) is kind:
                raise ValueError(f"{kind.__name__} has no curvature in the module's outputs: {why}")
        self.reduction = str(getattr(loss, "reduction", "mean"))
        if self.reduction not in ("mean", "sum"):
            raise ValueError(
                f"the loss has reduction={self.reduction!r}; it must give one number: use 'mean' or 'sum'"
            )
        self.call: Any = loss
        self.kind = "user"
        if type(loss) is nn.CrossEntropyLoss:
            self.kind = "cross-entropy"
        elif type(loss) in _ELEMENTWISE:
            self.kind = "elementwise"
        self._double: Loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        return _one_number(self.call(outputs, targets))

    def in_float64(self, outputs: Any, targets: Any) -> Tensor:
        """The value summed in float64, where the loss allows it: late in training f falls by less than
        float32 tells apart."""
        try:
            value = self._double(_doubled(outputs), _doubled(targets))
        except (RuntimeError, TypeError, ValueError):
            value = self.call(outputs, targets)
        return _one_number(value).detach().double()

    def scored(self, inputs: Any, targets: Any) -> Scored:
        leaves = [leaf for leaf in pytree.tree_leaves(targets) if isinstance(leaf, Tensor)]
        if not leaves:  # targets of None and the like: count examples
            return _examples(inputs)
        target = leaves[0]
        if self.kind == "cross-entropy":
            return self._scored_classes(target)
        elements = target.numel()
        if self.kind == "user" and not target.is_floating_point():
            elements = int((target != IGNORED).sum())
        return Scored(elements, float(elements))

    def _scored_classes(self, target: Tensor) -> Scored:
        if target.is_floating_point():  # probabilities; torch divides by positions whatever the weights
            positions = target.numel() // target.shape[class_dimension(target)]
            return Scored(positions, float(positions))
        known = target != self.call.ignore_index
        elements = int(known.sum())
        weight: Tensor | None = self.call.weight
        if weight is None:
            return Scored(elements, float(elements))
        return Scored(elements, float(weight[target[known]].double().sum()))

    def position_weights(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy: what multiplies diag(p) − ppᵀ at each position, (..., C) reduced over C. Zero
        where ignored."""
        classes = class_dimension(logits)
        weight: Tensor = logits.new_ones(logits.shape[classes])
        if self.call.weight is not None:
            weight = self.call.weight.to(logits)
        smoothing = float(self.call.label_smoothing)
        if target.is_floating_point():
            own = (target.to(logits).movedim(class_dimension(target), -1) * weight).sum(-1)
            return (1 - smoothing) * own + smoothing * weight.mean()
        known = target != self.call.ignore_index
        own = weight[torch.where(known, target, torch.zeros_like(target))]
        return torch.where(known, (1 - smoothing) * own + smoothing * weight.mean(), torch.zeros_like(own))


def class_dimension(logits: Tensor) -> int:
    """Where torch's CrossEntropyLoss looks for classes."""
    return 1 if logits.ndim > 1 else 0


def _as_module(loss: Loss) -> Any:
    """torch's functional losses, bare or with keywords by `partial`, as the modules they are."""
    keywords: dict[str, Any] = {}
    function: Any = loss
    if isinstance(loss, partial) and not loss.args:
        function, keywords = loss.func, loss.keywords
    try:
        return _FUNCTIONS[function](**keywords) if function in _FUNCTIONS else loss
    except TypeError:  # unhashable, or keywords that the module does not have: a loss like any other
        return loss


def _one_number(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"the loss gave a {type(value).__name__} instead of a tensor of one number")
    if value.numel() != 1:
        raise ValueError(
            f"the loss gave a tensor of shape {tuple(value.shape)} instead of one number: reduce it, for "
            f"example by its mean"
        )
    return value.reshape(())


def _doubled(values: Any) -> Any:
    def doubled(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(doubled, values)


def _examples(inputs: Any) -> Scored:
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    count = int(leaves[0].shape[0]) if leaves else 1
    return Scored(count, float(count))
