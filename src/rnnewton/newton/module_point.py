"""One chunk of a batch at one point: its graph, kept, so that a product runs only the linear part of both
directions.

θ: weights, p of them; z: the module's output tensors; s: tapped states; v: a direction, in the parameters'
shapes.

    vjp   zᵀu backwards through the kept graph
    jvp   the transpose of that: g(w) = Jᵀw is linear in w, so that Jv = ∂(gᵀv)/∂w, one pass through the
    graph of g H u   the same trick on the loss: ∂(∂loss/∂z · u)/∂z

Transposing twice needs no forward mode, which torch's recurrent and custom layers may lack, and repeats no
forward pass: it took half to two thirds of the time of torch.func.jvp (LAB_LOG.md). Forward mode is there
for layers without a second derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from rnnewton.newton.module_losses import OutputLoss
from rnnewton.newton.module_passes import Name, Recorder, forward_mode_kernels, run


class Frame(Protocol):
    """What all chunks share."""

    module: nn.Module
    loss: OutputLoss
    states: dict[Name, nn.Module]
    layers: dict[Name, nn.Module]
    forward_mode: bool  # jvp by dual numbers instead of by transposing twice
    transposes: bool  # whether transposing twice was seen to be right
    convex: bool  # whether the loss has been looked at

    def weights(self) -> dict[Name, Tensor]: ...


class ChunkPoint:
    def __init__(self, frame: Frame, inputs: Any, targets: Any) -> None:
        self.frame, self.inputs, self.targets = frame, inputs, targets
        self._named = {name: w.detach().requires_grad_() for name, w in frame.weights().items()}
        self._weights = list(self._named.values())
        self.recorder = Recorder(states=frame.states, layers=frame.layers)
        with torch.enable_grad():
            outputs = run(frame.module, self._named, inputs, self.recorder)
        leaves, self._spec = pytree.tree_flatten(outputs)
        self._constant = leaves
        self._active = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not self._active:
            raise ValueError("the module's output does not depend on any trainable parameter")
        self.outputs: list[Tensor] = [leaves[i] for i in self._active]
        self.taps = flat_taps(self.recorder)
        self._differentiate_loss()
        self._transposed: tuple[list[Tensor], list[int], list[Tensor]] | None = None

    # -- the loss ------------------------------------------------------------------------------------------

    def _differentiate_loss(self) -> None:
        with torch.enable_grad():
            self._points = [z.detach().requires_grad_() for z in self.outputs]
            nest = self.nest(self._points)
            value = self.frame.loss(nest, self.targets)
            if not value.requires_grad:
                raise ValueError("the loss does not depend on the module's outputs")
            slopes = torch.autograd.grad(value, self._points, create_graph=True, allow_unused=True)
        self._slopes = [_or_zeros(slope, z) for slope, z in zip(slopes, self._points, strict=True)]
        self.loss = self.frame.loss.in_float64(self.nest([z.detach() for z in self.outputs]), self.targets)

    def nest(self, leaves: Sequence[Tensor]) -> Any:
        """Output tensors back in the module's own structure."""
        filled = list(self._constant)
        for i, leaf in zip(self._active, leaves, strict=True):
            filled[i] = leaf
        return pytree.tree_unflatten(filled, self._spec)

    def unnest(self, nest: Any) -> list[Tensor]:
        """The output tensors that depend on weights, out of the module's own structure."""
        leaves = pytree.tree_leaves(nest)
        return [leaves[i] for i in self._active]

    def slopes(self) -> list[Tensor]:
        """∂loss/∂z."""
        return [slope.detach() for slope in self._slopes]

    def curve(self, u: Sequence[Tensor]) -> list[Tensor]:
        """H u."""
        curved = [i for i, slope in enumerate(self._slopes) if slope.requires_grad]
        if not curved:
            return [torch.zeros_like(z) for z in self._points]
        slopes, chosen = [self._slopes[i] for i in curved], [u[i] for i in curved]
        products = torch.autograd.grad(slopes, self._points, chosen, retain_graph=True, allow_unused=True)
        return [_or_zeros(product, z).detach() for product, z in zip(products, self._points, strict=True)]

    # -- the network ---------------------------------------------------------------------------------------

    def vjp(self, outputs: Sequence[Tensor], taps: Sequence[Tensor] = ()) -> Tensor:
        """Jᵀ of cotangents at the outputs and, if given, at the taps: (p,)."""
        sources = [*self.outputs, *self.taps[: len(taps)]]
        gradients = torch.autograd.grad(
            sources, self._weights, [*outputs, *taps], retain_graph=True, allow_unused=True
        )
        return torch.cat([_dense(g, w).reshape(-1) for g, w in zip(gradients, self._weights, strict=True)])

    def jvp(self, v: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """J v: tangents of the outputs and of the taps."""
        directions = [
            piece.view_as(w)
            for piece, w in zip(v.split([w.numel() for w in self._weights]), self._weights, strict=True)
        ]
        if not self.frame.forward_mode:
            try:
                tangents = self._jvp_by_transposing(directions)
                if not self.frame.transposes:
                    self._check_transposed(v, tangents)
                return tangents
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # some layer has no second derivative (NotImplementedError is one, too)
                tangents = self._jvp_instead(directions)
                self.frame.forward_mode = True
                return tangents
        return self._jvp_by_dual_numbers(directions)

    def _jvp_instead(self, directions: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        try:
            return self._jvp_by_dual_numbers(directions)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a layer of the module has neither a second derivative nor a forward mode: torch cannot "
                f"multiply by its curvature; replace that layer ({str(error).splitlines()[0]})"
            ) from error

    def _jvp_by_transposing(self, directions: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        if self._transposed is None:
            self._transposed = self._transpose()
        cotangents, used, gradients = self._transposed
        chosen = [directions[i] for i in used]
        found = torch.autograd.grad(gradients, cotangents, chosen, retain_graph=True, allow_unused=True)
        tangents = [_or_zeros(t, w).detach() for t, w in zip(found, cotangents, strict=True)]
        return tangents[: len(self.outputs)], tangents[len(self.outputs) :]

    def _check_transposed(self, v: Tensor, tangents: tuple[list[Tensor], list[Tensor]]) -> None:
        """Once: uᵀ(Jv) = (Jᵀu)ᵀv for a random u. A layer that is differentiable once only may vanish in
        silence.
        """
        generator = torch.Generator().manual_seed(0)  # the check's own: nobody's random state moves
        flat = [t.double() for t in (*tangents[0], *tangents[1])]
        probes = [torch.randn(t.shape, generator=generator).to(t) for t in flat]
        sources = [*self.outputs, *self.taps]
        cotangents = [probe.to(source.dtype) for probe, source in zip(probes, sources, strict=True)]
        pulled = self.vjp(cotangents[: len(self.outputs)], cotangents[len(self.outputs) :]).double()
        left = sum((float((u * t).sum()) for u, t in zip(probes, flat, strict=True)), 0.0)
        right = float(torch.dot(pulled, v.double()))
        eps = torch.finfo(v.dtype).eps
        scale = float(pulled.norm()) * float(v.norm())
        if abs(left - right) > eps**0.5 * max(abs(left), abs(right)) + 100 * eps * scale:
            raise RuntimeError("a layer of the module has no second derivative")
        self.frame.transposes = scale > 0

    def _transpose(self) -> tuple[list[Tensor], list[int], list[Tensor]]:
        """Cotangents w, and the gradients g(w) = Jᵀw of the weights that depend on them, with the graph
        between."""
        sources = [*self.outputs, *self.taps]
        cotangents = [torch.zeros_like(source).requires_grad_() for source in sources]
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                sources, self._weights, cotangents, create_graph=True, allow_unused=True
            )
        found = cast("Sequence[Tensor | None]", gradients)
        used = [i for i, g in enumerate(found) if g is not None and g.requires_grad]
        return cotangents, used, [g for g in found if g is not None and g.requires_grad]

    def _jvp_by_dual_numbers(self, directions: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        module = self.frame.module
        recorder = Recorder(states=self.frame.states)
        with torch.no_grad(), forward_ad.dual_level(), forward_mode_kernels(module):
            duals = {
                name: forward_ad.make_dual(w.detach(), direction)
                for (name, w), direction in zip(self._named.items(), directions, strict=True)
            }
            leaves = pytree.tree_leaves(run(module, duals, self.inputs, recorder))
            outputs = [_tangent(leaves[i]) for i in self._active]
            return outputs, [_tangent(tap) for tap in flat_taps(recorder)]

    # -- what flows through weights ------------------------------------------------------------------------

    def cotangents_of_layers(self, outputs: Sequence[Tensor]) -> dict[Name, list[tuple[Tensor, Tensor]]]:
        """For every recorded layer, per call: its input, and the cotangent at its output, for cotangents at
        the outputs."""
        places = [(name, call) for name, calls in self.recorder.calls.items() for call in calls]
        if not places:
            return {}
        edges = [edge for _, (_, edge, _) in places]
        gradients = torch.autograd.grad(
            self.outputs, edges, list(outputs), retain_graph=True, allow_unused=True
        )
        found = cast("Sequence[Tensor | None]", gradients)
        result: dict[Name, list[tuple[Tensor, Tensor]]] = {}
        for (name, (inputs, _, shape)), delta in zip(places, found, strict=True):
            delta = self._weights[0].new_zeros(shape) if delta is None else delta
            result.setdefault(name, []).append((inputs, delta))
        return result


def flat_taps(recorder: Recorder) -> list[Tensor]:
    """Tapped states in the order of their names: a submodule that was called several times counts as
    often."""
    return [tap for name in recorder.states for tap in recorder.tapped.get(name, [])]


def _tangent(dual: Tensor) -> Tensor:
    tangent = forward_ad.unpack_dual(dual).tangent
    return torch.zeros_like(dual) if tangent is None else tangent.detach().clone()


def _or_zeros(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value


def _dense(gradient: Tensor | None, weight: Tensor) -> Tensor:
    """Embeddings with sparse=True give sparse gradients."""
    if gradient is None:
        return torch.zeros_like(weight)
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach()
