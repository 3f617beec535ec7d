"""Dense oracles for plain modules: Jacobian and Hessian by torch.autograd.functional, nothing shared
with the package.

p: number of parameters, z: outputs, flattened.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rnnewton.newton.module import ModuleProblem


def flat_outputs(module: nn.Module, inputs: Any) -> Tensor:
    outputs = module(*inputs) if type(inputs) is tuple else module(inputs)
    return outputs if isinstance(outputs, Tensor) else torch.cat([x.flatten() for x in outputs])


def jacobian(module: nn.Module, function: Any) -> Tensor:
    """∂function()/∂θ over trained parameters, (z, p); `function` calls the module it is given."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    start = torch.cat([p.detach().flatten() for p in trained.values()])

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self) -> Tensor:
            return function(self.inner).flatten()

    wrapper = Wrapper()

    def call(flat: Tensor) -> Tensor:
        pieces = flat.split([p.numel() for p in trained.values()])
        weights = {f"inner.{k}": v.view_as(p) for (k, p), v in zip(trained.items(), pieces, strict=True)}
        return functional_call(wrapper, weights, ())

    return torch.autograd.functional.jacobian(call, start)


def dense_gauss_newton(module: nn.Module, loss: Any, inputs: Any, targets: Any) -> Tensor:
    """JᵀHJ of a module that returns one tensor."""
    with torch.no_grad():
        z = module(*inputs) if type(inputs) is tuple else module(inputs)
    hessian = torch.autograd.functional.hessian(lambda flat: loss(flat.view_as(z), targets), z.flatten())
    j = jacobian(module, lambda m: m(*inputs) if type(inputs) is tuple else m(inputs))
    return j.T @ hessian @ j


def product_matrix(problem: ModuleProblem, batch: Any, **damping: float) -> Tensor:
    """Gauss-Newton, column by column, from one linearisation."""
    linearization = problem.linearize(batch)
    eye = torch.eye(problem.size, dtype=problem.read().dtype)
    return torch.stack([linearization.gauss_newton(e, **damping) for e in eye], 1)


def flat_gradient(module: nn.Module, value: Tensor) -> Tensor:
    trained = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, trained, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for g, p in zip(found, trained, strict=True)
        ]
    )
