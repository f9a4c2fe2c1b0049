"""What a Trainer adds by itself: a logger, checkpoints, a progress bar, a summary."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from drivetrain.base.errors import CheckpointError, ConfigError
from drivetrain.base.locations import is_url, locate
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from drivetrain.callbacks.model_summary import ModelSummary
from drivetrain.callbacks.progress_bar import is_bar
from drivetrain.callbacks.rich_progress_bar import RichProgressBar
from drivetrain.callbacks.timer import Timer
from drivetrain.loggers.csv_logger import CSVLogger
from drivetrain.loggers.logger import Logger
from drivetrain.loop.callback import Callback
from drivetrain.loop.hooks import check_callback
from drivetrain.loop.module import Module
from drivetrain.loop.window_sizes import WindowSizes
from drivetrain.trainer.checkpoint_search import CheckpointSearch


def root_directory(given: str | Path | None) -> str:
    """Where the files of runs go: as given, by default the current directory."""
    if given is None:
        return str(Path.cwd())
    located = locate(given)
    return located if is_url(located) else str(given).removeprefix("file://")


def default_loggers(logger: Logger | Sequence[Logger] | bool | None, root: str) -> list[Logger]:
    """The loggers of a run: those given, or a CSV logger under `root`."""
    if logger is None or logger is True:
        return [CSVLogger(_logs_root(root))]
    if logger is False:
        return []
    return [logger] if isinstance(logger, Logger) else list(logger)


def _logs_root(root: str) -> str:
    if not is_url(root):
        return root
    warnings.warn(
        f"default_root_dir={root!r} is a URL: checkpoints go there, logs to {Path.cwd()} (logger=False for none).",
        stacklevel=4,
    )
    return str(Path.cwd())


def default_callbacks(
    callbacks: Callback | Sequence[Callback] | None,
    *,
    checkpoint: bool,
    progress_bar: bool,
    summary: bool,
    max_time: timedelta | Mapping[str, int] | str | None = None,
) -> list[Callback]:
    """The callbacks given, and those that are switched on and not among them.

    Raises:
        HookError: One of them is not a callback.
        ConfigError: One is switched off that was given.
    """
    if callbacks is None:
        own: list[Any] = []
    else:
        own = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    for one in own:
        check_callback(one)
    if not checkpoint and any(isinstance(one, ModelCheckpoint) for one in own):
        raise ConfigError(
            "enable_checkpointing=False, but callbacks holds a ModelCheckpoint.",
            code="checkpointing-off",
            do="Drop one of the two.",
        )
    if progress_bar and not any(map(is_bar, own)):
        own.append(RichProgressBar())
    if summary and not any(isinstance(one, ModelSummary) for one in own):
        own.append(ModelSummary())
    if checkpoint and not any(isinstance(one, ModelCheckpoint) for one in own):
        own.append(ModelCheckpoint())
    if max_time is not None:
        own.append(Timer(max_time))
    return _in_order(own)


def with_callbacks_of(module: Module, callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks of a trainer and those that a module brings, which take the place of others of their class.

    Raises:
        HookError: The module brings what is not a callback.
        ConfigError: It brings a schedule of windows, which a trainer has to know from its start.
    """
    brought = module.configure_callbacks()
    brought = list(brought) if isinstance(brought, (list, tuple)) else [brought]
    for one in brought:
        check_callback(one)
        if isinstance(getattr(one, "window_sizes", None), WindowSizes):
            raise ConfigError(
                f"configure_callbacks returned a {type(one).__name__}, which says how large windows are.",
                code="window-size",
                do="Give it to the Trainer: callbacks=[...].",
            )
    kinds = {type(one) for one in brought}
    return _in_order([*(one for one in callbacks if type(one) not in kinds), *brought])


def _in_order(callbacks: Sequence[Callback]) -> list[Callback]:
    # A checkpoint holds what the other callbacks have noted by then.
    return sorted(callbacks, key=lambda one: isinstance(one, ModelCheckpoint))


def resolve_checkpoint(trainer: Any, ckpt_path: CheckpointSearch | str | Path | None) -> CheckpointSearch | str | None:
    """What `"best"`, `"last"`, a path or a URL stands for: the first two are of the trainer's `ModelCheckpoint`.

    `"last"` is looked for when the run has started; without a `ModelCheckpoint` in `default_root_dir`.

    Raises:
        CheckpointError: There is none of that kind.
    """
    keeper = trainer.checkpoint_callback
    if ckpt_path == "last":
        return CheckpointSearch("ckpt_path='last'")
    if ckpt_path == "best" and keeper is not None and keeper.best_model_path:
        return str(keeper.best_model_path)
    if ckpt_path == "best":
        raise CheckpointError(
            f"ckpt_path={ckpt_path!r}, but no checkpoint of that kind was kept.",
            code="checkpoint-missing",
            do="Give the path of a checkpoint, or train with a ModelCheckpoint first.",
        )
    return locate(ckpt_path) if isinstance(ckpt_path, (str, Path)) else ckpt_path
