"""Floor 9: drivetrain under the names that scripts written for Lightning import.

import drivetrain.lightning as L
from drivetrain.lightning.callbacks import ModelCheckpoint
"""

from __future__ import annotations

from drivetrain.lightning.familiar import finder
from drivetrain.lightning.paths import home_of, make_modules

__version__ = "2.6.0"  # of the protocol, for scripts that compare it

_PARTS = ("callbacks", "cli", "loggers", "profilers", "strategies", "tuner", "utilities")
_NAMES = ("LightningModule", "LightningDataModule", "Trainer", "Callback", "Fabric", "seed_everything")

__all__ = sorted((*_NAMES, *_PARTS))
__getattr__ = finder(__name__, {name: home_of(name) for name in _NAMES}, parts=_PARTS)
make_modules()
