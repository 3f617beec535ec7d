"""Line-search damping (chapter 3.3): the curvature stays as it is, and the network follows each direction
only as far as its own loss falls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rnnewton.newton.damping.base import Damping


@dataclass(frozen=True)
class LineSearch(Damping):
    """x_q takes CG's own step along every direction, x_f that step times epsilon, found by backtracking."""

    decay: float = 0.8  # tau; the thesis does not give it
    decays: int = 10  # at most so many along one direction
    stalled: int = 5  # more stalled directions than this end the run

    kind: ClassVar[str] = "line-search"

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(
                f"decay={self.decay!r} must lie between 0 and 1: each try shortens the step by it"
            )
        if self.decays < 1 or self.stalled < 0:
            raise ValueError(f"decays={self.decays} must be at least 1 and stalled={self.stalled} at least 0")
