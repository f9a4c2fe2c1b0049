"""Floor 6: what a user hangs into a run. Callbacks are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "BackboneFinetuning": "backbone_finetuning",
    "BaseFinetuning": "base_finetuning",
    "BasePredictionWriter": "prediction_writer",
    "DeviceStatsMonitor": "device_stats_monitor",
    "EMA": "weight_averaging",
    "EMAWeightAveraging": "weight_averaging",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
    "LambdaCallback": "lambda_callback",
    "LearningRateMonitor": "learning_rate_monitor",
    "ModelCheckpoint": "model_checkpoint",
    "ModelPruning": "model_pruning",
    "ModelSummary": "model_summary",
    "NonFiniteMonitor": "nonfinite_monitor",
    "OnExceptionCheckpoint": "on_exception_checkpoint",
    "ParameterCheck": "parameter_check",
    "RichModelSummary": "model_summary",
    "RichProgressBar": "progress_bar",
    "StochasticWeightAveraging": "stochastic_weight_averaging",
    "StragglerMonitor": "straggler_monitor",
    "TQDMProgressBar": "tqdm_progress_bar",
    "ThroughputMonitor": "throughput_monitor",
    "Timer": "timer",
    "WeightAveraging": "weight_averaging",
}

__all__ = sorted((*_HOME, "Callback"))


def __getattr__(name: str) -> Any:
    if name == "Callback":
        return importlib.import_module("drivetrain.loop.callback").Callback
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'drivetrain.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"drivetrain.callbacks.{home}"), name)
