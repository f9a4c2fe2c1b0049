"""The tuner."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_NAMES = {"Tuner": "drivetrain.tuner.tuner"}

__all__ = sorted(_NAMES)
__getattr__ = finder(__name__, _NAMES)
