"""Searches inside of a run that is set up: at the start of `fit`, or between two of its windows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.module import Module
from drivetrain.trainer.given_loaders import as_given
from drivetrain.trainer.request import Request
from drivetrain.tuner.trial import check_steps


def search_inside(
    name: str, trainer: Any, pl_module: Module, find: Callable[..., Any], what: Any, *, compiles: bool
) -> Any:
    """Search on copies of a module as it is now, over the data that its run trains on.

    Ranks: all, between two windows.

    Args:
        name: Who searches, for errors.
        trainer: Of the run.
        pl_module: Its module.
        find: Called with fabric, trainer, request and `what`.
        what: How it searches.
        compiles: The copies are compiled as the module is. Not for many shapes: torch compiles a function for a few,
            after which training would run uncompiled.

    Returns:
        What `find` gave; `None` under `fast_dev_run`.

    Raises:
        ConfigError: The module cannot be copied, or steps by itself.
    """
    run = trainer.run
    traits = run.fabric.strategy.traits
    if traits.shards_state or traits.steps_apart:
        raise ConfigError(
            f"{name} trains copies of a module inside of its run; strategy={traits.name!r} has a module that cannot be "
            "copied there.",
            code="tuner-inside",
            do="Search before: Tuner(trainer).lr_find(module, ...), then fit.",
        )
    check_steps(name, pl_module)
    if trainer.fast_dev_run:
        warnings.warn(f"{name} does nothing under fast_dev_run.", stacklevel=3)
        return None
    request = Request(
        "fit", pl_module, as_given(run.train_loader), None, run.datamodule,
        compiler=run.request.compiler if compiles else None, is_inner=True,
    )  # fmt: skip
    return find(run.fabric, trainer, request, what)
