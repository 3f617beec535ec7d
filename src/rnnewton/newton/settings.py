"""Every choice of the Hessian-free optimiser that is not the damping or the preconditioner, in small
groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rnnewton.newton.problem import PassSettings


@dataclass(frozen=True)
class ConjugateGradientSettings:
    iterations: int = 100
    window: int = 10  # k of the stopping rule
    tolerance: float = 5e-4  # ε of the stopping rule
    seconds: float | None = None  # a budget for one run; it makes a run depend on the clock
    refresh: int = 50  # the true residual is recomputed every so often
    warm_start: float = 0.95  # share of the last solution that a run starts from; 0: from nothing

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.window < 1 or self.refresh < 1:
            raise ValueError(
                f"iterations={self.iterations}, window={self.window} and refresh={self.refresh} must be at "
                f"least 1"
            )
        if not 0 <= self.warm_start <= 1:
            raise ValueError(f"warm_start={self.warm_start} must lie between 0 (none) and 1")


@dataclass(frozen=True)
class CurvatureSettings:
    fraction: float = 0.25  # of the gradient batch, when no curvature batch is given
    correction: bool = (
        False  # two batches: the step's length from a second curvature batch (Tatzel et al. 2025)
    )

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"the curvature's fraction={self.fraction} must be above 0 and at most 1")


@dataclass(frozen=True)
class FinalStepSettings:
    """Which iterate becomes the step, and how its length is found on the gradient batch."""

    iterate: Literal["last", "backtracking"] = "last"
    spacing: float = 1.3  # "backtracking": iterates are kept at powers of this
    rule: Literal["minimum", "armijo"] = (
        "minimum"  # shorten while the loss falls; or to the first decrease that is enough
    )
    sufficient: float = 0.01  # "armijo": the share of the slope's promise that is enough
    decay: float = 0.8
    decays: int = 10

    def __post_init__(self) -> None:
        if self.iterate not in ("last", "backtracking") or self.rule not in ("minimum", "armijo"):
            raise ValueError(
                f"iterate={self.iterate!r} must be 'last' or 'backtracking', rule={self.rule!r} 'minimum' or "
                f"'armijo'"
            )
        if not 0 < self.decay < 1 or self.decays < 0 or self.spacing <= 1:
            raise ValueError(
                f"decay={self.decay} must lie between 0 and 1, decays={self.decays} be at least 0, "
                f"spacing={self.spacing} above 1"
            )


@dataclass(frozen=True)
class RecoverySettings:
    """When steps come to nothing several times in a row. Until then each one grows the damping more."""

    after: int = 4
    nothing: float = 0.05  # a step cut to less than this has come to nothing …
    progress: float = 1e-5  # … and one that lowers the loss by less than this share of it
    worked: float = 1e-3  # a step that lowers it by this share shows a damping that works
    widening: float = 2.0  # more curvature examples, by this factor each time
    widest: float = 4.0


@dataclass(frozen=True)
class HessianFreeSettings:
    """The defaults are the thesis's; `small_batch()` gives those that were measured for small batches."""

    cg: ConjugateGradientSettings = field(default_factory=ConjugateGradientSettings)
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)
    final: FinalStepSettings = field(default_factory=FinalStepSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    passes: PassSettings = field(default_factory=PassSettings)
    # On which loss p is measured: the curvature batch's; the same with its slope corrected to the gradient
    # batch's; or the gradient batch's, which makes damping run away once the gradient is mostly noise.
    ratio: Literal["curvature", "corrected", "gradient"] = "curvature"
    averaging: float | None = None  # decay of the exponential average of the iterates
    measure_noise: bool = False  # the gradient in two halves: its noise asks for larger batches
    trace: bool = False  # one entry per CG iteration in the report
    epoch_characters: int | None = None  # characters of the training text, the unit of `work`

    def __post_init__(self) -> None:
        if self.ratio not in ("curvature", "corrected", "gradient"):
            raise ValueError(f"ratio={self.ratio!r} must be 'curvature', 'corrected' or 'gradient'")
        if self.averaging is not None and not 0 <= self.averaging < 1:
            raise ValueError(
                f"averaging={self.averaging} must be at least 0 and below 1, or None for no average"
            )

    @staticmethod
    def small_batch(
        passes: PassSettings | None = None, epoch_characters: int | None = None
    ) -> HessianFreeSettings:
        """For batches of 40,000 to 100,000 characters with a Kronecker-factored preconditioner."""
        return HessianFreeSettings(
            cg=ConjugateGradientSettings(iterations=5, warm_start=0.9),
            curvature=CurvatureSettings(fraction=0.2),
            final=FinalStepSettings(rule="armijo", decays=5),  # down to 0.8¹⁵ = 0.035
            averaging=0.9,
            passes=passes or PassSettings(),
            epoch_characters=epoch_characters,
        )
