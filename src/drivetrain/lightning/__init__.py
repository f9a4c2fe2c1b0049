"""Floor 9: drivetrain under the names that scripts written for Lightning import.

import drivetrain.lightning as L
from drivetrain.lightning.callbacks import ModelCheckpoint
"""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

__version__ = "2.6.0"  # of the protocol, for scripts that compare it

_PARTS = ("callbacks", "cli", "loggers", "profilers", "strategies", "tuner", "utilities")
_NAMES = {
    "LightningModule": "drivetrain.loop.module:Module",
    "LightningDataModule": "drivetrain.loop.data_module:DataModule",
    "Trainer": "drivetrain.trainer.trainer",
    "Callback": "drivetrain.loop.callback",
    "Fabric": "drivetrain.fabric.fabric",
    "seed_everything": "drivetrain.base.rng",
}

__all__ = sorted((*_NAMES, *_PARTS))
__getattr__ = finder(__name__, _NAMES, parts=_PARTS)
