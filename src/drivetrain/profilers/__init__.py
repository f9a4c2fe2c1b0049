"""Floor 1: what a step costs, and where. Profilers are imported when they are first used."""

from __future__ import annotations

from drivetrain.base.lazy_names import finder

_HOME = {
    "AdvancedProfiler": "advanced_profiler",
    "PassThroughProfiler": "profiler",
    "Profiler": "profiler",
    "PyTorchProfiler": "pytorch_profiler",
    "SimpleProfiler": "simple_profiler",
}

__all__ = sorted(_HOME)
__getattr__ = finder(__name__, {name: f"{__name__}.{home}" for name, home in _HOME.items()})
