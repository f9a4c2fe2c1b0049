"""drivetrain: one training step, any number of ranks, the same result.

Public names are imported when they are first used, so that `import drivetrain` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    # name -> the module that defines it
    "Trainer": "drivetrain.trainer.trainer",
    "Fabric": "drivetrain.fabric.fabric",
    "Tuner": "drivetrain.tuner.tuner",
    "LearningRateFinder": "drivetrain.tuner.learning_rate_finder",
    "BatchSizeFinder": "drivetrain.tuner.batch_size_finder",
    "Module": "drivetrain.loop.module",
    "DataModule": "drivetrain.loop.data_module",
    "Callback": "drivetrain.loop.callback",
    "CLI": "drivetrain.cli.training_cli",
    "seed_everything": "drivetrain.base.rng",
    "note_progress": "drivetrain.base.pulse",
    "Patience": "drivetrain.launch.patience",
    "ModelCheckpoint": "drivetrain.callbacks.model_checkpoint",
    "BackboneFinetuning": "drivetrain.callbacks.backbone_finetuning",
    "BaseFinetuning": "drivetrain.callbacks.base_finetuning",
    "BasePredictionWriter": "drivetrain.callbacks.prediction_writer",
    "OnExceptionCheckpoint": "drivetrain.callbacks.on_exception_checkpoint",
    "EarlyStopping": "drivetrain.callbacks.early_stopping",
    "EMA": "drivetrain.callbacks.weight_averaging",
    "EMAWeightAveraging": "drivetrain.callbacks.weight_averaging",
    "WeightAveraging": "drivetrain.callbacks.weight_averaging",
    "StochasticWeightAveraging": "drivetrain.callbacks.stochastic_weight_averaging",
    "GradientAccumulationScheduler": "drivetrain.callbacks.gradient_accumulation_scheduler",
    "CombinedLoader": "drivetrain.data.combined_loader",
    "Interval": "drivetrain.base.interval",
    "LearningRateMonitor": "drivetrain.callbacks.learning_rate_monitor",
    "ModelPruning": "drivetrain.callbacks.model_pruning",
    "ModelSummary": "drivetrain.callbacks.model_summary",
    "NonFiniteMonitor": "drivetrain.callbacks.nonfinite_monitor",
    "ParameterCheck": "drivetrain.callbacks.parameter_check",
    "RichModelSummary": "drivetrain.callbacks.model_summary",
    "ProgressBar": "drivetrain.callbacks.progress_bar",
    "RichProgressBar": "drivetrain.callbacks.rich_progress_bar",
    "DeviceStatsMonitor": "drivetrain.callbacks.device_stats_monitor",
    "TQDMProgressBar": "drivetrain.callbacks.tqdm_progress_bar",
    "StragglerMonitor": "drivetrain.callbacks.straggler_monitor",
    "ThroughputMonitor": "drivetrain.callbacks.throughput_monitor",
    "Logger": "drivetrain.loggers.logger",
    "CSVLogger": "drivetrain.loggers.csv_logger",
    "TensorBoardLogger": "drivetrain.loggers.tensorboard_logger",
    "WandbLogger": "drivetrain.loggers.wandb_logger",
    "MLFlowLogger": "drivetrain.loggers.mlflow_logger",
    "CometLogger": "drivetrain.loggers.comet_logger",
    "NeptuneLogger": "drivetrain.loggers.neptune_logger",
    "Strategy": "drivetrain.strategies.strategy",
    "SingleDevice": "drivetrain.strategies.single_device",
    "DDP": "drivetrain.strategies.ddp",
    "MicroBatchFinder": "drivetrain.fabric.micro_batch_finder",
    "SaveHandle": "drivetrain.fabric.saves",
    "PowerSGD": "drivetrain.strategies.power_sgd",
    "FSDP": "drivetrain.strategies.fsdp",
    "DataParallel": "drivetrain.strategies.data_parallel",
    "LocalSGD": "drivetrain.strategies.local_sgd",
    "DiLoCo": "drivetrain.strategies.diloco",
    "PreemptedExit": "drivetrain.launch.stop_signals",
    "InterruptedExit": "drivetrain.launch.stop_signals",
    "PREEMPTED_EXIT_CODE": "drivetrain.launch.stop_signals",
    "ClusterInfo": "drivetrain.cluster.cluster_info",
    "rank_zero_only": "drivetrain.cluster.rank_zero",
    "rank_zero_info": "drivetrain.cluster.rank_zero",
    "rank_zero_warn": "drivetrain.cluster.rank_zero",
    "Precision": "drivetrain.precision.precision",
    **dict.fromkeys(
        (
            "DrivetrainError",
            "ConfigError",
            "MissingExtraError",
            "MissingNameError",
            "DeviceError",
            "LaunchError",
            "RankFailedError",
            "ProcessGroupError",
            "NotOpenError",
            "ModelError",
            "MethodNotPreparedError",
            "OptimizerError",
            "StepOutputError",
            "DataError",
            "UnevenDataError",
            "HookError",
            "WindowError",
            "NonFiniteError",
            "OutOfMemoryError",
            "LoggingError",
            "CheckpointError",
        ),
        "drivetrain.base.errors",
    ),
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'drivetrain' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


if TYPE_CHECKING:
    from drivetrain.base.errors import *  # noqa: F403
