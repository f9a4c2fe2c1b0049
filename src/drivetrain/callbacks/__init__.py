"""Floor 6: what a user hangs into a run. Callbacks are imported when they are first used."""

from __future__ import annotations

from drivetrain.base.lazy_names import finder

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
    "ProgressBar": "progress_bar",
    "RichProgressBar": "rich_progress_bar",
    "RichProgressBarTheme": "progress_theme",
    "StochasticWeightAveraging": "stochastic_weight_averaging",
    "StragglerMonitor": "straggler_monitor",
    "TQDMProgressBar": "tqdm_progress_bar",
    "ThroughputMonitor": "throughput_monitor",
    "Timer": "timer",
    "WeightAveraging": "weight_averaging",
}

__all__ = sorted((*_HOME, "Callback"))
_PLACES = {name: f"{__name__}.{home}" for name, home in _HOME.items()}
__getattr__ = finder(__name__, {**_PLACES, "Callback": "drivetrain.loop.callback"})
