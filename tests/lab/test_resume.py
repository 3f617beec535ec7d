"""Killed at random moments, between writes and inside them, a run ends as if nothing had happened."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TORTURE = Path(__file__).parents[1] / "torture.py"


def torture_module() -> ModuleType:
    specification = importlib.util.spec_from_file_location("torture", TORTURE)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["torture"] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_five_kills(tmp_path: Path) -> None:
    found = torture_module().torture(tmp_path, kills=5, seed=7, steps=4)
    assert found.kills == 5 and found.in_writes >= 1
    assert found.same_weights and found.same_metrics and found.steps == 4
