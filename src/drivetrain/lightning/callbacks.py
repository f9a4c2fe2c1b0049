"""All callbacks of drivetrain."""

from __future__ import annotations

from drivetrain import callbacks
from drivetrain.lightning.familiar import finder

__all__ = callbacks.__all__
__getattr__ = finder(__name__, dict.fromkeys(__all__, "drivetrain.callbacks"))
