"""Strategies, whose arguments are drivetrain's."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_NAMES = {
    "DDPStrategy": "drivetrain.strategies.ddp:DDP",
    "DataParallelStrategy": "drivetrain.strategies.data_parallel:DataParallel",
    "FSDPStrategy": "drivetrain.strategies.fsdp:FSDP",
    "SingleDeviceStrategy": "drivetrain.strategies.single_device:SingleDevice",
    "Strategy": "drivetrain.strategies.strategy",
}

__all__ = sorted(_NAMES)
__getattr__ = finder(__name__, _NAMES)
