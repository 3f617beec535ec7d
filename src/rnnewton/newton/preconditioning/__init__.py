"""Preconditioners of conjugate gradient, one idea a file, and the names by which settings and checkpoints
call them."""

from __future__ import annotations

from torch import Tensor

from rnnewton.newton.preconditioning.base import Preconditioner
from rnnewton.newton.preconditioning.diagonal import Diagonal
from rnnewton.newton.preconditioning.identity import Identity
from rnnewton.newton.preconditioning.kronecker import Kronecker, KroneckerSettings
from rnnewton.newton.preconditioning.krylov import Krylov

PRECONDITIONERS = ("none", "diagonal", "krylov", "kronecker")


def preconditioner_of(name: str | Preconditioner, symbol_frequencies: Tensor | None = None) -> Preconditioner:
    """A preconditioner by name; one that is already built is passed through."""
    if not isinstance(name, str):
        return name
    if name == "kronecker":
        return Kronecker(symbol_frequencies=symbol_frequencies)
    plain = {"none": Identity, "diagonal": Diagonal, "krylov": Krylov}
    if name not in plain:
        raise ValueError(f"no preconditioner is called {name!r}; choose one of {', '.join(PRECONDITIONERS)}")
    return plain[name]()


__all__ = [
    "PRECONDITIONERS",
    "Diagonal",
    "Identity",
    "Kronecker",
    "KroneckerSettings",
    "Krylov",
    "Preconditioner",
    "preconditioner_of",
]
