"""The command line of one's own."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_NAMES = {
    "ArgsType": "drivetrain.cli",
    "LightningArgumentParser": "drivetrain.cli:ArgumentParser",
    "LightningCLI": "drivetrain.cli:CLI",
    "SaveConfigCallback": "drivetrain.cli",
}

__all__ = sorted(_NAMES)
__getattr__ = finder(__name__, _NAMES)
