"""Small problems with known answers, for the tests of the optimiser.

p: number of parameters. Weights and directions are (p,).
"""

from __future__ import annotations

import torch
from torch import Tensor


class QuadraticPoint:
    """f(θ) = ½ θᵀHθ + cᵀθ at one point: its Gauss-Newton matrix is H itself, its states are θ."""

    def __init__(self, problem: QuadraticProblem, count: int) -> None:
        self._problem = problem
        self._theta = problem.read()
        self.count = count
        self.loss = torch.tensor(problem.value(self._theta), dtype=torch.float64)

    def gradient(self) -> Tensor:
        return self._problem.hessian @ self._theta + self._problem.linear

    def gauss_newton(self, v, structural=0.0, tikhonov=0.0, form="matching", tap="output") -> Tensor:
        self._problem.touch("product")
        return self._problem.hessian @ v + (structural + tikhonov) * v

    def jvp(self, v):
        raise NotImplementedError

    def vjp(self, outputs, states=None):
        raise NotImplementedError

    def traffic(self, generator=None):
        raise NotImplementedError


class QuadraticProblem:
    """A batch is an integer, its number of scored positions. `fail_at` breaks off at the n-th operation."""

    def __init__(self, hessian: Tensor, linear: Tensor, constant: float = 10.0) -> None:
        self.hessian, self.linear, self.constant = hessian, linear, constant
        self.theta = torch.zeros_like(linear)
        self.operations: list[str] = []
        self.fail_at: int | None = None

    @property
    def size(self) -> int:
        return self.linear.numel()

    def touch(self, name: str) -> None:
        self.operations.append(name)
        if self.fail_at is not None and len(self.operations) == self.fail_at:
            raise KeyboardInterrupt(f"killed at operation {self.fail_at}, {name}")

    def value(self, theta: Tensor) -> float:
        theta = theta.double()
        quadratic = 0.5 * theta @ self.hessian.double() @ theta
        return float(quadratic + self.linear.double() @ theta) + self.constant

    def read(self) -> Tensor:
        return self.theta.clone()

    def write(self, flat: Tensor) -> None:
        self.theta = flat.clone()

    def scored(self, batch) -> int:
        return int(batch)

    def characters(self, batch) -> int:
        return int(batch)

    def loss(self, batch) -> float:
        self.touch("loss")
        return self.value(self.theta)

    def linearize(self, batch) -> QuadraticPoint:
        self.touch("linearize")
        return QuadraticPoint(self, int(batch))

    def subset(self, batch, fraction, generator):
        return max(1, round(batch * fraction))


def random_quadratic(
    size: int, seed: int, dtype=torch.float64, damping: float = 0.1
) -> tuple[Tensor, Tensor]:
    """A symmetric positive definite matrix and a slope."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=dtype)
    return root @ root.t() / size + damping * torch.eye(size, dtype=dtype), torch.randn(
        size, generator=generator, dtype=dtype
    )
