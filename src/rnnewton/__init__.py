"""Recurrent networks trained with curvature. The public face, loaded lazily: this module imports no torch."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module that defines it
_PUBLIC = {
    "RecurrentModel": "rnnewton.recurrent.model",
    "Real": "rnnewton.recurrent.architecture",
    "Normal": "rnnewton.recurrent.initialization",
    "SparseNormal": "rnnewton.recurrent.initialization",
    "load": "rnnewton.recurrent.saving",
    "HessianFree": "rnnewton.newton.optimizer",
    "StepReport": "rnnewton.newton.report",
    "Structural": "rnnewton.newton.damping",
    "Tikhonov": "rnnewton.newton.damping",
    "LineSearch": "rnnewton.newton.damping",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rnnewton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
