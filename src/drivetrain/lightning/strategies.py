"""Strategies, whose arguments are drivetrain's, and for some of them the familiar spellings of those."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_NAMES = {
    "DDPStrategy": "drivetrain.lightning.ddp_strategy",
    "DataParallelStrategy": "drivetrain.strategies.data_parallel:DataParallel",
    "DeepSpeedStrategy": "drivetrain.lightning.deepspeed_strategy",
    "FSDPStrategy": "drivetrain.lightning.fsdp_strategy",
    "ModelParallelStrategy": "drivetrain.lightning.model_parallel_strategy",
    "SingleDeviceStrategy": "drivetrain.strategies.single_device:SingleDevice",
    "Strategy": "drivetrain.strategies.strategy",
}

__all__ = sorted(_NAMES)
__getattr__ = finder(__name__, _NAMES)
