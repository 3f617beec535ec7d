"""How weights begin (thesis, chapters 4 and 5): drawn per weight by its name, alike on every machine."""

from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
import torch
from torch import Tensor


class Initialization(Protocol):
    def draw(self, name: str, shape: tuple[int, ...], seed: int) -> Tensor: ...  # float64, on the CPU


@dataclass(frozen=True)
class Normal:
    """Every weight normal with mean 0 and the given deviation; biases start at 0."""

    deviation: float = 0.1

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise ValueError(f"deviation={self.deviation!r}: a standard deviation is at least 0")

    def draw(self, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
        if is_bias(name):
            return torch.zeros(shape, dtype=torch.float64)
        return torch.from_numpy(stream(name, seed).standard_normal(shape) * self.deviation)


@dataclass(frozen=True)
class SparseNormal:
    """As `Normal`, but a recurrent weight is 0 with probability `zero` (thesis, chapter 4.1: 0.9)."""

    deviation: float = 0.1
    zero: float = 0.9

    def __post_init__(self) -> None:
        Normal(self.deviation)
        if not 0 <= self.zero <= 1:
            raise ValueError(f"zero={self.zero!r}: a probability lies between 0 and 1")

    def draw(self, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
        weight = Normal(self.deviation).draw(name, shape, seed)
        if not is_recurrent(name):
            return weight
        kept = torch.from_numpy(stream(name + "/kept", seed).random(shape) >= self.zero)
        return weight * kept


def stream(name: str, seed: int) -> np.random.Generator:
    """NumPy's own generator: its draws are specified, torch's differ between vector widths."""
    return np.random.Generator(np.random.PCG64([seed, crc32(name.encode())]))


def is_bias(name: str) -> bool:
    return letters(name).startswith("B_")


def is_recurrent(name: str) -> bool:
    """Whether the weight carries the state of its own layer: from H(t−1) or M(t)."""
    short = letters(name)
    return short in ("W_hh", "W_hm", "W_mh") or (short.count("_") == 2 and short[-1] in "hm")


def letters(name: str) -> str:
    return name.rsplit(".", 1)[-1]
