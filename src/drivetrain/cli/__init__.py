"""Floor 9: the `drivetrain` command, and command lines of one's own. `CLI` needs the extra `cli`."""

from __future__ import annotations

from drivetrain.base.lazy_names import finder

_HOME = {
    "ArgsType": "training_cli",
    "ArgumentParser": "argument_parser",
    "CLI": "training_cli",
    "SaveConfigCallback": "save_config",
}

__all__ = sorted(_HOME)
__getattr__ = finder(__name__, {name: f"{__name__}.{home}" for name, home in _HOME.items()})
