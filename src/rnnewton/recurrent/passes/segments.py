"""Where the states are kept when activations are recomputed (thesis, chapter 3.3, "Parallelization")."""

from math import isqrt

Segments = list[tuple[int, int]]


ROWS = 4096  # of a batched product: enough for its speed, and still in the cache when its results are used


def paced(steps: int, sequences: int) -> Segments:
    """Everything stored, walked in segments of about `ROWS` rows."""
    return _cut(steps, max(ROWS // sequences, 1))


def even(steps: int) -> Segments:
    """Segments of about √T steps: 2·√T hidden vectors at any time."""
    return _cut(steps, isqrt(max(steps - 1, 0)) + 1)


def uneven(steps: int) -> Segments:
    """Segments of …, 3, 2, 1 steps: on the way back the shortest come first, while most states are still
    kept, and grow longer as the kept states grow fewer: about √(2T) hidden vectors at any time."""
    segments: Segments = []
    stop, length = steps, 1
    while stop > 0:
        segments.append((max(stop - length, 0), stop))
        stop, length = stop - length, length + 1
    return segments[::-1]


def _cut(steps: int, length: int) -> Segments:
    return [(start, min(start + length, steps)) for start in range(0, steps, length)]


SPACINGS = {"even": even, "uneven": uneven}
