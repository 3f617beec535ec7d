"""One forward pass of a plain module with borrowed weights: nothing of the module changes, and every kernel
can be differentiated.

Weights and buffers go in as arguments (torch.func.functional_call), the buffers as copies, so that a pass
leaves no trace. Some fast kernels know no second derivative or no forward mode; they are off for the time
of a pass.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.hooks import RemovableHandle

Name = str


@dataclass
class Recorder:
    """What a pass is to remember: outputs of named submodules, and what flows through weights."""

    states: Mapping[Name, nn.Module] = field(default_factory=dict)
    layers: Mapping[Name, nn.Module] = field(default_factory=dict)
    tapped: dict[Name, list[Tensor]] = field(default_factory=dict)
    # per layer and call: its input, and the point of the graph where its output leaves it. A tensor would
    # not do: what follows may change it in place.
    calls: dict[Name, list[tuple[Tensor, GradientEdge, torch.Size]]] = field(default_factory=dict)

    @contextmanager
    def listening(self) -> Generator[None]:
        handles: list[RemovableHandle] = []
        try:
            for name, module in self.layers.items():
                handles.append(module.register_forward_hook(self._layer_hook(name)))
            for name, module in self.states.items():
                handles.append(module.register_forward_hook(self._state_hook(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _layer_hook(self, name: Name) -> Any:
        def hook(_module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            if output.requires_grad:
                call = (arguments[0].detach(), get_gradient_edge(output), output.shape)
                self.calls.setdefault(name, []).append(call)

        return hook

    def _state_hook(self, name: Name) -> Any:
        def hook(_module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> Any:
            first = output if isinstance(output, Tensor) else output[0]
            self.tapped.setdefault(name, []).append(first)
            copy = first.clone()  # what follows may change its input in place; the tap must not change
            if isinstance(output, Tensor):
                return copy
            parts = [copy, *output[1:]]
            return output._make(parts) if hasattr(output, "_make") else type(output)(parts)

        return hook


def run(
    module: nn.Module, weights: Mapping[Name, Tensor], inputs: Any, recorder: Recorder | None = None
) -> Any:
    """module(inputs) at other weights; a tuple of inputs is spread over the module's arguments."""
    borrowed = {**{name: buffer.clone() for name, buffer in module.named_buffers()}, **weights}
    arguments = inputs if type(inputs) is tuple else (inputs,)
    with (recorder or Recorder()).listening(), differentiable_kernels(module):
        return functional_call(module, borrowed, arguments)


@contextmanager
def differentiable_kernels(module: nn.Module) -> Generator[None]:
    """Attention by its plain formula, recurrent layers without cuDNN; all as before afterwards."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if has_recurrent_layers(module) and any(p.is_cuda for p in module.parameters()):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


@contextmanager
def forward_mode_kernels(module: nn.Module) -> Generator[None]:
    """oneDNN's recurrent layer has no forward mode: torch.func.jvp raises NotImplementedError unless it is
    off."""
    if not has_recurrent_layers(module):
        yield
        return
    enabled = (
        torch.backends.mkldnn.enabled
    )  # not `flags`, which touches more and warns of Intel's graphics cards
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = enabled


def has_recurrent_layers(module: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in module.modules())
