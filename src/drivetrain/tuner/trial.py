"""One short run of training on copies, after which the trainer, the module and the random state are what they were."""

from __future__ import annotations

import copy
import dataclasses
import gc
from typing import Any

import torch

from drivetrain.base.errors import ConfigError
from drivetrain.fabric.fabric import Fabric
from drivetrain.loop.callback import Callback
from drivetrain.loop.limits import Limits
from drivetrain.loop.module import Module
from drivetrain.profilers.profiler import PassThroughProfiler
from drivetrain.trainer.request import Request
from drivetrain.trainer.run import run_fit
from drivetrain.trainer.view import TrainerView


def run_trial(
    fabric: Fabric, trainer: TrainerView, request: Request, observer: Callback, *, num_steps: int, **changes: Any
) -> None:
    """Train a copy of the module for some optimizer steps, without the trainer's callbacks and loggers.

    Ranks: all.

    Args:
        fabric: Open in this rank.
        trainer: The user's; it is not changed.
        request: What to train.
        observer: The only callback.
        num_steps: Optimizer steps.
        changes: Attributes of the trainer that are others in this run.
    """
    found = getattr(request.datamodule, "trainer", None)
    with fabric.trial():
        try:
            module = copy.deepcopy(request.module)
            module.zero_grad()  # of a window that is not full
            scratch = _scratch(trainer, observer, num_steps, changes)
            run_fit(fabric, scratch, dataclasses.replace(request, module=module, is_elsewhere=False))
        finally:
            if request.datamodule is not None:
                request.datamodule.trainer = found


def _scratch(trainer: TrainerView, observer: Callback, num_steps: int, changes: dict[str, Any]) -> TrainerView:
    """A trainer like this one with counters of its own, that reports to nobody."""
    scratch = copy.copy(trainer)
    TrainerView.__init__(scratch)
    scratch.callbacks, scratch._loggers, scratch.profiler = [observer], [], PassThroughProfiler()
    scratch.reload_dataloaders_every_n_epochs, scratch.model_registry = 0, None  # loaders were given
    scratch.limits = Limits(max_epochs=-1, max_steps=num_steps)
    scratch.limit_val_batches = scratch.num_sanity_val_steps = 0
    for name, value in changes.items():
        setattr(scratch, name, value)
    return scratch


def check_steps(name: str, module: Module) -> None:
    """A search makes the steps itself.

    Raises:
        ConfigError: The module does.
    """
    if not module.automatic_optimization:
        raise ConfigError(
            f"{name} steps by itself, but {type(module).__name__} does so too (automatic_optimization=False).",
            code="manual-optimization",
            do="Compare short runs.",
        )


def free_memory() -> None:
    """Give back what a trial that did not fit has left."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
