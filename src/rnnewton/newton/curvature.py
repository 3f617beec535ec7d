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
        # 1 where weights move, 0 where they are frozen; None where all move. A Kronecker block may hold both.
        self._free: Tensor | None = getattr(linearization, "free", None)

    def multiply(self, v: Tensor) -> Tensor:
        """Av."""
        terms = self.terms
        self.products += 1
        product = self._linearization.gauss_newton(
            v, structural=terms.structural, tikhonov=terms.tikhonov, form=terms.form, tap=terms.tap
        )
        if not terms.metric:
            return product
        return product + terms.metric * self._moving(self._preconditioner.metric(v))

    def solve(self, residual: Tensor) -> Tensor:
        """The preconditioned residual: M with the damping of this quadratic, inverted."""
        return self._moving(self._preconditioner.solve(residual, self.terms.tikhonov, self.terms.metric))

    def value(self, x: Tensor) -> float:
        """q(x), for one product."""
        return float(0.5 * dot(x, self.multiply(x)) + dot(self.slope, x))

    def _moving(self, v: Tensor) -> Tensor:
        return v if self._free is None else v * self._free
