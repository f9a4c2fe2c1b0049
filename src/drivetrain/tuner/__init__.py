"""Floor 8: short runs that look for a learning rate or a batch size, and leave nothing behind."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {"LRFindResult": "lr_find", "Tuner": "tuner"}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'drivetrain.tuner' has no attribute {name!r}")
    return getattr(importlib.import_module(f"drivetrain.tuner.{home}"), name)
