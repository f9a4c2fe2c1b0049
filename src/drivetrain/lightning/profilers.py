"""All profilers of drivetrain."""

from __future__ import annotations

from drivetrain import profilers
from drivetrain.lightning.familiar import finder

__all__ = profilers.__all__
__getattr__ = finder(__name__, dict.fromkeys(__all__, "drivetrain.profilers"))
