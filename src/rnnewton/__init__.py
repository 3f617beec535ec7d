"""Recurrent networks trained with curvature. The public face, loaded lazily: this module imports no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` loads at first use, for editors and type checkers
    from rnnewton.newton.damping import LineSearch, Metric, Structural, Tikhonov
    from rnnewton.newton.optimizer import HessianFree
    from rnnewton.newton.report import StepReport
    from rnnewton.newton.settings import HessianFreeSettings
    from rnnewton.recurrent.architecture import Real
    from rnnewton.recurrent.initialization import Normal, SparseNormal
    from rnnewton.recurrent.model import RecurrentModel
    from rnnewton.recurrent.saving import load

__version__ = "0.1.0"

__all__ = [
    "HessianFree",
    "HessianFreeSettings",
    "LineSearch",
    "Metric",
    "Normal",
    "Real",
    "RecurrentModel",
    "SparseNormal",
    "StepReport",
    "Structural",
    "Tikhonov",
    "__version__",
    "load",
]

_MODULES = {
    "HessianFree": "rnnewton.newton.optimizer",
    "HessianFreeSettings": "rnnewton.newton.settings",
    "LineSearch": "rnnewton.newton.damping",
    "Metric": "rnnewton.newton.damping",
    "Normal": "rnnewton.recurrent.initialization",
    "Real": "rnnewton.recurrent.architecture",
    "RecurrentModel": "rnnewton.recurrent.model",
    "SparseNormal": "rnnewton.recurrent.initialization",
    "StepReport": "rnnewton.newton.report",
    "Structural": "rnnewton.newton.damping",
    "Tikhonov": "rnnewton.newton.damping",
    "load": "rnnewton.recurrent.saving",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rnnewton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
