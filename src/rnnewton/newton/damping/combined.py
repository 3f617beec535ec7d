"""Sums of dampings (chapter 5.2): the terms add up, and one p moves each adaptive part."""

from __future__ import annotations

from dataclasses import dataclass

from rnnewton.newton.damping.base import Damping, Evidence, Terms
from rnnewton.newton.damping.structural import Structural


@dataclass(frozen=True)
class Combined(Damping):
    members: tuple[Damping, ...]

    def __post_init__(self) -> None:
        kinds = [part.kind for part in self.members]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            raise ValueError(
                f"the sum holds more than one {twice[0]} damping; add their weights and give one"
            )
        if {"tikhonov", "metric"} <= set(kinds):
            raise ValueError(
                "metric damping has its own lambda (`lam`): leave the tikhonov damping out of the sum"
            )

    @property
    def parts(self) -> tuple[Damping, ...]:
        return self.members

    @property
    def every(self) -> int | None:
        """The parts are asked at the shortest of their intervals, so that one p moves all."""
        intervals = [part.every for part in self.members if part.every is not None]
        return min(intervals, default=None)

    def terms(self) -> Terms:
        tikhonov = sum(part.terms().tikhonov for part in self.members)
        metric = sum(part.terms().metric for part in self.members)
        for part in self.members:
            if isinstance(part, Structural):
                weight = part.mu * tikhonov if part.times_lambda else part.mu
                return Terms(weight, part.form, part.tap, tikhonov, metric)
        return Terms(tikhonov=tikhonov, metric=metric)

    def adapted(self, evidence: Evidence, start: Damping) -> Damping:
        pairs = zip(self.members, start.parts, strict=True)
        return Combined(tuple(part.adapted(evidence, begun) for part, begun in pairs))

    def grown(self) -> Damping:
        return Combined(tuple(part.grown() for part in self.members))

    def trusted(self, start: Damping) -> bool:
        return all(part.trusted(begun) for part, begun in zip(self.members, start.parts, strict=True))
