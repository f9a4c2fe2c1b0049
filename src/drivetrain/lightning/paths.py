"""The deeper paths under which scripts import familiar names: one table, and modules that are made from it.

None of them is a file. A name is looked up when it is used, as everywhere in `drivetrain.lightning`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from drivetrain.lightning.familiar import finder

_TOP = "drivetrain.lightning"
_CALLBACKS, _LOGGERS, _STRATEGIES = f"{_TOP}.callbacks", f"{_TOP}.loggers", f"{_TOP}.strategies"
_ACCELERATORS = "drivetrain.device.accelerator"
_FUNCTIONS, _RANK_ZERO = "drivetrain.lightning.functions", "drivetrain.cluster.rank_zero"

_HOMES = {
    "LightningModule": "drivetrain.loop.module:Module",
    "LightningDataModule": "drivetrain.loop.data_module:DataModule",
    "LightningOptimizer": "drivetrain.loop.manual_optimization:ManualOptimizer",
    "HyperparametersMixin": "drivetrain.loop.hyper_parameters:HyperParameters",
    "AttributeDict": "drivetrain.loop.hyper_parameters",
    "Trainer": "drivetrain.trainer.trainer",
    "TrainerState": "drivetrain.trainer.stage",
    "TrainerFn": "drivetrain.trainer.stage",
    "TrainerStatus": "drivetrain.trainer.stage",
    "RunningStage": "drivetrain.trainer.stage",
    "Fabric": "drivetrain.fabric.fabric",
    "seed_everything": "drivetrain.base.rng",
    "isolate_rng": _FUNCTIONS,
    "apply_to_collection": _FUNCTIONS,
    "get_filesystem": _FUNCTIONS,
    "grad_norm": _FUNCTIONS,
    "rank_zero_experiment": _FUNCTIONS,
    "is_overridden": _FUNCTIONS,
    "move_data_to_device": "drivetrain.base.tree:move_to",
    "summarize": "drivetrain.callbacks.model_summary",
    "rank_zero_info": _RANK_ZERO,
    "rank_zero_only": _RANK_ZERO,
    "rank_zero_warn": _RANK_ZERO,
    "rank_zero_debug": _RANK_ZERO,
    "MisconfigurationException": "drivetrain.base.errors:ConfigError",
    "PossibleUserWarning": "builtins:UserWarning",
    "CombinedLoader": "drivetrain.data.combined_loader",
    **dict.fromkeys(("Accelerator", "CPUAccelerator", "CUDAAccelerator", "MPSAccelerator"), _ACCELERATORS),
}

# Path below `drivetrain.lightning` -> its names: of callbacks, loggers and strategies, or of the table above.
_PATHS = {
    "accelerators": "Accelerator CPUAccelerator CUDAAccelerator MPSAccelerator",
    "callbacks.base": "Callback",
    "callbacks.callback": "Callback",
    "callbacks.device_stats_monitor": "DeviceStatsMonitor",
    "callbacks.early_stopping": "EarlyStopping",
    "callbacks.finetuning": "BaseFinetuning BackboneFinetuning",
    "callbacks.gradient_accumulation_scheduler": "GradientAccumulationScheduler",
    "callbacks.lambda_function": "LambdaCallback",
    "callbacks.lr_monitor": "LearningRateMonitor",
    "callbacks.model_checkpoint": "ModelCheckpoint",
    "callbacks.model_summary": "ModelSummary",
    "callbacks.on_exception_checkpoint": "OnExceptionCheckpoint",
    "callbacks.prediction_writer": "BasePredictionWriter",
    "callbacks.batch_size_finder": "BatchSizeFinder",
    "callbacks.lr_finder": "LearningRateFinder",
    "callbacks.progress": "ProgressBar RichProgressBar TQDMProgressBar",
    "callbacks.progress.progress_bar": "ProgressBar",
    "callbacks.progress.rich_progress": "RichProgressBar RichProgressBarTheme",
    "callbacks.progress.tqdm_progress": "TQDMProgressBar",
    "callbacks.pruning": "ModelPruning",
    "callbacks.rich_model_summary": "RichModelSummary",
    "callbacks.stochastic_weight_avg": "StochasticWeightAveraging",
    "callbacks.throughput_monitor": "ThroughputMonitor",
    "callbacks.timer": "Timer",
    "callbacks.weight_averaging": "EMAWeightAveraging WeightAveraging",
    "core": "LightningDataModule LightningModule LightningOptimizer",
    "core.datamodule": "LightningDataModule",
    "core.lightning": "LightningModule",
    "core.mixins": "HyperparametersMixin",
    "core.module": "LightningModule",
    "core.optimizer": "LightningOptimizer",
    "loggers.base": "Logger rank_zero_experiment",
    "loggers.comet": "CometLogger",
    "loggers.csv_logs": "CSVLogger",
    "loggers.logger": "Logger rank_zero_experiment",
    "loggers.mlflow": "MLFlowLogger",
    "loggers.neptune": "NeptuneLogger",
    "loggers.tensorboard": "TensorBoardLogger",
    "loggers.wandb": "WandbLogger",
    "strategies.ddp": "DDPStrategy",
    "strategies.deepspeed": "DeepSpeedStrategy",
    "strategies.fsdp": "FSDPStrategy",
    "strategies.model_parallel": "ModelParallelStrategy",
    "strategies.single_device": "SingleDeviceStrategy",
    "strategies.strategy": "Strategy",
    "trainer": "Trainer",
    "trainer.states": "RunningStage TrainerFn TrainerState TrainerStatus",
    "trainer.trainer": "Trainer",
    "utilities.apply_func": "apply_to_collection move_data_to_device",
    "utilities.cloud_io": "get_filesystem",
    "utilities.combined_loader": "CombinedLoader",
    "utilities.distributed": "rank_zero_info rank_zero_only rank_zero_warn",
    "utilities.exceptions": "MisconfigurationException",
    "utilities.model_helpers": "is_overridden",
    "utilities.model_summary": "ModelSummary summarize",
    "utilities.parsing": "AttributeDict",
    "utilities.rank_zero": "rank_zero_debug rank_zero_info rank_zero_only rank_zero_warn",
    "utilities.seed": "isolate_rng seed_everything",
    "utilities.warnings": "PossibleUserWarning",
    "fabric": "Fabric seed_everything",
    "fabric.fabric": "Fabric",
}

# Path -> the module whose names it has.
_SAME = {
    "fabric.accelerators": "accelerators",
    "fabric.loggers": "loggers",
    "fabric.strategies": "strategies",
    "fabric.utilities": "utilities",
    **{f"fabric.utilities.{part}": f"utilities.{part}" for part in
       ("apply_func", "cloud_io", "exceptions", "rank_zero", "seed", "types", "warnings")},
    **{f"pytorch.{path}": path for path in
       ("callbacks", "cli", "loggers", "profilers", "strategies", "tuner", "utilities", "utilities.types", *_PATHS)
       if not path.startswith("fabric")},
}  # fmt: skip


def home_of(name: str, path: str = "") -> str:
    """Where a familiar name is, as `finder` takes it.

    Args:
        name: The familiar one.
        path: From which it is imported: names of callbacks, loggers and strategies are those of their folder.
    """
    folder = {"callbacks": _CALLBACKS, "loggers": _LOGGERS, "strategies": _STRATEGIES}.get(path.partition(".")[0])
    if name in _HOMES:
        return _HOMES[name]
    return folder or _CALLBACKS


def make_modules() -> None:
    """Put a module for each path where Python looks before it searches the disk."""
    sys.modules[f"{_TOP}.pytorch"] = sys.modules[_TOP]
    for path, names in _PATHS.items():
        homes = {name: home_of(name, path) for name in names.split()}
        _make(path, finder(f"{_TOP}.{path}", homes), sorted(homes))
    for path, same in _SAME.items():
        _make(path, _of(f"{_TOP}.{same}"), None)


def _make(path: str, find: Callable[[str], Any], names: list[str] | None) -> None:
    module = ModuleType(f"{_TOP}.{path}", "Familiar names; see drivetrain.lightning.paths.")
    members: Mapping[str, Any] = {"__getattr__": find, "__path__": []}
    vars(module).update(members)
    if names is not None:
        vars(module)["__all__"] = names
    sys.modules[module.__name__] = module


def _of(module: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    return find
