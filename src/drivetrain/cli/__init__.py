"""Floor 9: the `drivetrain` command, and command lines of one's own. `CLI` needs the extra `cli`."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "ArgsType": "training_cli",
    "ArgumentParser": "argument_parser",
    "CLI": "training_cli",
    "SaveConfigCallback": "save_config",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'drivetrain.cli' has no attribute {name!r}")
    return getattr(importlib.import_module(f"drivetrain.cli.{home}"), name)
