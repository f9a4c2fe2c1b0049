"""Types that annotations of scripts name; here they say nothing."""

from __future__ import annotations

from typing import Any, TypeAlias

_PATH: TypeAlias = Any
STEP_OUTPUT: TypeAlias = Any
TRAIN_DATALOADERS: TypeAlias = Any
EVAL_DATALOADERS: TypeAlias = Any
OptimizerLRScheduler: TypeAlias = Any
LRSchedulerConfig: TypeAlias = Any
LRSchedulerPLType: TypeAlias = Any
LRSchedulerTypeUnion: TypeAlias = Any
Optimizable: TypeAlias = Any
