"""What the outputs are scored by: value, derivative, Hessian-vector product; sums, not yet divided by n.

Legend: T steps (rows of time that are scored), B sequences, O outputs; z (T, B, O) network outputs before
the softmax; target (T, B) symbols or (T, B, O) real numbers; mask (T, B) of the scored positions, None for
all of them.
"""

from typing import Protocol

import torch
from torch import Generator, Tensor


class Loss(Protocol):
    def value(
        self, z: Tensor, target: Tensor, mask: Tensor | None
    ) -> Tensor: ...  # float64 sum over the scored
    def prediction(self, z: Tensor) -> Tensor: ...  # all that the Hessian needs
    def derivative(self, prediction: Tensor, target: Tensor, mask: Tensor | None) -> Tensor: ...
    def hessian(self, prediction: Tensor, r_z: Tensor, mask: Tensor | None) -> Tensor: ...  # H_loss · R(z)
    def sample(
        self, prediction: Tensor, generator: Generator
    ) -> Tensor: ...  # derivative at a sampled target


class Softmax:
    """Cross-entropy of the softmax, in nats: −log p(target)."""

    def value(self, z: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        nats = torch.logsumexp(z, -1) - z.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return masked(nats.unsqueeze(-1), mask).sum(dtype=torch.float64)

    def prediction(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -1)

    def derivative(self, prediction: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """p − γ (thesis, chapter 2.1), γ by index, never as a matrix."""
        minus_one = prediction.new_full((), -1.0).expand(*target.shape, 1)
        return masked(prediction.scatter_add(-1, target.unsqueeze(-1), minus_one), mask)

    def hessian(self, prediction: Tensor, r_z: Tensor, mask: Tensor | None) -> Tensor:
        """(diag(p) − p pᵀ) R(z), element-wise."""
        weighted = prediction * r_z
        return masked(weighted - prediction * weighted.sum(-1, keepdim=True), mask)

    def sample(self, prediction: Tensor, generator: Generator) -> Tensor:
        shape = prediction.shape[:-1]
        level = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float32).to(
            prediction
        )
        drawn = torch.searchsorted(prediction.cumsum(-1), level.unsqueeze(-1)).squeeze(-1)
        return self.derivative(prediction, drawn.clamp_(max=prediction.shape[-1] - 1), None)


class Squared:
    """Mean over the outputs of (z − y)², as torch.nn.MSELoss; its Hessian is 2/O."""

    def value(self, z: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return masked((z - target) ** 2, mask).sum(dtype=torch.float64) / z.shape[-1]

    def prediction(self, z: Tensor) -> Tensor:
        return z

    def derivative(self, prediction: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return masked((prediction - target) * (2.0 / prediction.shape[-1]), mask)

    def hessian(self, prediction: Tensor, r_z: Tensor, mask: Tensor | None) -> Tensor:
        return masked(r_z * (2.0 / prediction.shape[-1]), mask)

    def sample(self, prediction: Tensor, generator: Generator) -> Tensor:
        """A Gaussian cotangent whose covariance is the Hessian."""
        noise = torch.randn(
            prediction.shape, generator=generator, device=generator.device, dtype=torch.float32
        ).to(prediction)
        return noise * (2.0 / prediction.shape[-1]) ** 0.5


LOSSES: dict[str, Loss] = {"softmax": Softmax(), "squared": Squared()}


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (T, B, ·) with unscored positions at exactly zero, whatever stood there."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)
