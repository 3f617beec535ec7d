"""Where the states are kept when activations are recomputed (thesis, chapter 3.3, "Parallelization")."""

from math import isqrt

Segments = list[tuple[int, int]]


def whole(steps: int) -> Segments:
    """Everything stored: one segment."""
    return [(0, steps)]


def even(steps: int) -> Segments:
    """Segments of about √T steps: 2·√T hidden vectors at any time."""
    length = isqrt(max(steps - 1, 0)) + 1
    return [(start, min(start + length, steps)) for start in range(0, steps, length)]


def uneven(steps: int) -> Segments:
    """Segments of …, 3, 2, 1 steps: on the way back the shortest come first, while most states are still
    kept, and grow longer as the kept states grow fewer: about √(2T) hidden vectors at any time."""
    segments: Segments = []
    stop, length = steps, 1
    while stop > 0:
        segments.append((max(stop - length, 0), stop))
        stop, length = stop - length, length + 1
    return segments[::-1]


SPACINGS = {"even": even, "uneven": uneven}
