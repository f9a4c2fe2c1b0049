"""All loggers of drivetrain."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_NAMES = {
    "CSVLogger": "drivetrain.loggers.csv_logger",
    "CometLogger": "drivetrain.loggers.comet_logger",
    "Logger": "drivetrain.loggers.logger",
    "MLFlowLogger": "drivetrain.loggers.mlflow_logger",
    "NeptuneLogger": "drivetrain.loggers.neptune_logger",
    "TensorBoardLogger": "drivetrain.loggers.tensorboard_logger",
    "WandbLogger": "drivetrain.loggers.wandb_logger",
}

__all__ = sorted(_NAMES)
__getattr__ = finder(__name__, _NAMES)
