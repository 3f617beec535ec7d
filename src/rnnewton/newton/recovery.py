"""What happens when step after step comes to nothing: a fresh start for what may have gone stale, and a
sentence about it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rnnewton.newton.settings import RecoverySettings

if TYPE_CHECKING:
    from rnnewton.newton.step import Memory

_EASING = 0.9  # after a good step the extra curvature examples go slowly


def recovered(
    memory: Memory, step_size: float, gain: float, settings: RecoverySettings
) -> tuple[Memory, str | None]:
    """The memory after a step of that length (0: refused) and relative gain, and what was done about it."""
    if step_size >= settings.nothing and gain >= settings.progress:
        easier = max(1.0, memory.widening * _EASING)
        worked = memory.damping if gain >= settings.worked else memory.worked
        return replace(memory, failures=0, worked=worked, widening=easier), None
    failures = memory.failures + 1
    if failures < settings.after:
        return replace(memory, failures=failures), None
    widening = min(memory.widening * settings.widening, settings.widest)
    sentence = (
        f"{failures} steps in a row came to nothing: warm start dropped, damping back to where it last "
        f"worked, curvature examples x{widening:g}"
    )
    # Where it last worked grows too, so that a second recovery in a row does not try the same again.
    return (
        replace(
            memory,
            damping=memory.worked,
            worked=memory.worked.grown(),
            last=None,
            failures=0,
            widening=widening,
        ),
        sentence,
    )
