"""Floor 1: what a step costs, and where. Profilers are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "AdvancedProfiler": "advanced_profiler",
    "PassThroughProfiler": "profiler",
    "Profiler": "profiler",
    "PyTorchProfiler": "pytorch_profiler",
    "SimpleProfiler": "simple_profiler",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'drivetrain.profilers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"drivetrain.profilers.{home}"), name)
