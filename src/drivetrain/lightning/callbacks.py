"""All callbacks of drivetrain, and the searches that are callbacks."""

from __future__ import annotations

from drivetrain import callbacks
from drivetrain.lightning.familiar import finder

_OF_SEARCHES = ("BatchSizeFinder", "LearningRateFinder")  # of a higher floor, since they train

__all__ = sorted((*callbacks.__all__, *_OF_SEARCHES))
__getattr__ = finder(
    __name__, {**dict.fromkeys(callbacks.__all__, "drivetrain.callbacks"), **dict.fromkeys(_OF_SEARCHES, "drivetrain")}
)
