"""The damped quadratic that conjugate gradient minimises: q(x) = ½ xᵀAx + bᵀx.

p: number of parameters. A = G + mu·G_s + lambda·I + kappa·M is never formed; b is the gradient. All vectors
are (p,).
"""

from __future__ import annotations

from torch import Tensor

from rnnewton.newton.damping import Terms
from rnnewton.newton.preconditioning.base import Preconditioner
from rnnewton.newton.problem import Linearization
from rnnewton.newton.vector import dot


class Quadratic:
    """Curvature from one batch, slope from another."""

    def __init__(
        self, linearization: Linearization, slope: Tensor, terms: Terms, preconditioner: Preconditioner
    ) -> None:
        if terms.metric and not preconditioner.has_metric:
            raise ValueError(
                f"metric damping (kappa) needs a preconditioner that models the curvature; "
                f"{preconditioner.kind!r} does not: give preconditioner='kronecker', or damp with rn.Tikhonov"
            )
        self.slope = slope
        self.terms = terms
        self.products = 0
        self._linearization = linearization
        self._preconditioner = preconditioner

    def multiply(self, v: Tensor) -> Tensor:
        """Av."""
        terms = self.terms
        self.products += 1
        product = self._linearization.gauss_newton(
            v, structural=terms.structural, tikhonov=terms.tikhonov, form=terms.form, tap=terms.tap
        )
        return product + terms.metric * self._preconditioner.metric(v) if terms.metric else product

    def solve(self, residual: Tensor) -> Tensor:
        """The preconditioned residual: M with the damping of this quadratic, inverted."""
        return self._preconditioner.solve(residual, self.terms.tikhonov, self.terms.metric)

    def value(self, x: Tensor) -> float:
        """q(x), for one product."""
        return float(0.5 * dot(x, self.multiply(x)) + dot(self.slope, x))
