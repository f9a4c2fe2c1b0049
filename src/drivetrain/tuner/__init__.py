"""Floor 8: short runs that look for a learning rate or a batch size, and leave nothing behind."""

from __future__ import annotations

from drivetrain.base.lazy_names import finder

_HOME = {
    "BatchSizeFinder": "batch_size_finder",
    "LRFindResult": "lr_find",
    "LearningRateFinder": "learning_rate_finder",
    "Tuner": "tuner",
}

__all__ = sorted(_HOME)
__getattr__ = finder(__name__, {name: f"{__name__}.{home}" for name, home in _HOME.items()})
