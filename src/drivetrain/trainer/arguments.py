"""Trainer arguments: names that are unknown, and values that mean nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.loop.window_sizes import Sizes, WindowSizes

# Arguments of versions of the familiar protocol that are long gone: what to write today.
_FORMER = {
    "gpus": "devices=N, accelerator='gpu'",
    "tpu_cores": "nothing: there is no accelerator for TPUs",
    "progress_bar_refresh_rate": "callbacks=[RichProgressBar(refresh_s=...)], or enable_progress_bar=False",
    "resume_from_checkpoint": "trainer.fit(..., ckpt_path=...)",
    "checkpoint_callback": "enable_checkpointing",
    "weights_summary": "enable_model_summary",
    "distributed_backend": "strategy='ddp'",
    "amp_backend": "precision='16-mixed' or 'bf16-mixed'",
    "amp_level": "precision='16-mixed' or 'bf16-mixed'",
    "max_nb_epochs": "max_epochs",
    "early_stop_callback": "callbacks=[EarlyStopping(monitor=...)]",
    "auto_lr_find": "Tuner(trainer).lr_find(model, ...)",
    "auto_scale_batch_size": "Tuner(trainer).scale_batch_size(model, ...), or micro_batch_size='auto'",
    "auto_select_gpus": "devices='auto'",
    "terminate_on_nan": "callbacks=[EarlyStopping(monitor=..., check_finite=True)]",
    "track_grad_norm": "log the norm in on_before_optimizer_step",
    "flush_logs_every_n_steps": "CSVLogger(flush_logs_every_n_steps=...)",
    "multiple_trainloader_mode": "CombinedLoader(loaders, mode)",
    "reload_dataloaders_every_epoch": "reload_dataloaders_every_n_epochs=1",
    "move_metrics_to_cpu": "nothing: one number is kept for a name",
    "train_percent_check": "limit_train_batches",
    "val_percent_check": "limit_val_batches",
    "test_percent_check": "limit_test_batches",
    "row_log_interval": "log_every_n_steps",
    "log_save_interval": "log_every_n_steps",
}


def refuse_unknown(unknown: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse arguments that a Trainer does not have.

    Raises:
        ConfigError: It names the nearest argument, or today's way.
    """
    if not unknown:
        return
    name = next(iter(unknown))
    if name in _FORMER:
        raise ConfigError(
            f"Trainer has no argument {name!r}: it is of a version long gone.",
            code="former-argument",
            do=f"Today: {_FORMER[name]}.",
        )
    near = difflib.get_close_matches(name, list(known), n=1)
    raise ConfigError(
        f"Trainer has no argument {name!r}.",
        code="unknown-argument",
        do=(f"Did you mean {near[0]!r}? " if near else "") + "All arguments: help(drivetrain.Trainer).",
    )


def check_barebones(**given: Any) -> None:
    """Refuse what a bare run leaves out.

    Args:
        given: What it leaves out, as it was given to the trainer.

    Raises:
        ConfigError: It was asked for.
    """
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"barebones=True leaves out what {name}={value!r} asks for.",
                code="barebones",
                do="Give one of the two.",
            )


def check_reload(num_epochs: Any) -> int:
    """Epochs between two times that loaders are made: a whole number, 0 for never.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(num_epochs, int) or isinstance(num_epochs, bool) or num_epochs < 0:
        raise ConfigError(
            f"reload_dataloaders_every_n_epochs={num_epochs!r} is not a number of epochs.",
            code="limits",
            do="Use 1 or more; 0 for never.",
        )
    return num_epochs


def resolve_limit(name: str, limit: int | float | None, num_batches: int | None) -> int | None:
    """Batches at most: a number, a part of all (`float` from 0 to 1), or `None` for all.

    Raises:
        ConfigError: The value means nothing, or is a part of an unknown length.
    """
    if limit is None or (isinstance(limit, float) and limit == 1.0):
        return None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    if isinstance(limit, float) and 0.0 <= limit < 1.0:
        if num_batches is None:
            raise ConfigError(
                f"{name}={limit} is a part of a loader without a length.", code="limits", do="Give a whole number."
            )
        return int(num_batches * limit)
    raise ConfigError(
        f"{name}={limit!r} is neither a number of batches nor a part of them.",
        code="limits",
        do="Use a whole number, or a float from 0.0 to 1.0.",
    )


def require_positive(name: str, value: Any) -> int:
    """A whole number from 1.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r} is not a whole number from 1.", code="limits", do="Use 1 or more.")
    return value


def log_interval(num_steps: int | None, interval: str | timedelta | Interval | None) -> Interval:
    """Between two rows of the loggers: 50 steps, or what was given.

    Raises:
        ConfigError: It is given twice, or means nothing.
    """
    if interval is None:
        return Interval(50 if num_steps is None else require_positive("log_every_n_steps", num_steps), "steps")
    if num_steps is not None:
        raise ConfigError(
            f"Both log_every_n_steps={num_steps!r} and log_every={interval!r} were given.",
            code="log-interval",
            do="Give one of the two.",
        )
    return Interval.parse(interval, name="log_every")


def check_sanity_steps(num_steps: int | None) -> int:
    """Batches of the sanity check: 2 by default, -1 for all.

    Raises:
        ConfigError: It is no such number.
    """
    if num_steps is None:
        return 2
    if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < -1:
        raise ConfigError(
            f"num_sanity_val_steps={num_steps!r} is not a number of batches.",
            code="limits",
            do="Use 0 or more, or -1 for all.",
        )
    return num_steps


def check_clip(clip_value: Any, algorithm: str) -> None:
    """Gradients are clipped to something from 0 on.

    Raises:
        ConfigError: They are not, or in a way that is not known.
    """
    if algorithm not in ("norm", "value"):
        raise ConfigError(
            f"gradient_clip_algorithm={algorithm!r} is not known.", code="clip", do="Use 'norm' or 'value'."
        )
    if clip_value is not None and not (isinstance(clip_value, (int, float)) and clip_value >= 0):
        raise ConfigError(
            f"gradient_clip_val={clip_value!r} is nothing to clip to.",
            code="clip",
            do="Use a number above 0; 0 or None for no clipping.",
        )


def check_deterministic(value: bool | str) -> bool | str:
    """Whether deterministic algorithms alone are used, or (`"warn"`) where there are any.

    Raises:
        ConfigError: It is neither a bool nor `"warn"`.
    """
    if not isinstance(value, bool) and value != "warn":
        raise ConfigError(
            f"deterministic={value!r} is not known.", code="deterministic", do='Use True, False or "warn".'
        )
    return value


def window_sizes(sizes: Sizes, callbacks: Iterable[Any], global_batch_size: int | None) -> WindowSizes:
    """The sizes of windows, which the argument, a callback or the global batch size say.

    Raises:
        ConfigError: Several of them do, or one means nothing.
    """
    made = WindowSizes(sizes)
    schedules = [one for one in callbacks if isinstance(getattr(one, "window_sizes", None), WindowSizes)]
    if schedules and (len(schedules) > 1 or sizes != 1):
        first = "accumulate_grad_batches" if sizes != 1 else type(schedules[1]).__name__
        raise ConfigError(
            f"Both {first} and {type(schedules[0]).__name__} say how large windows are.",
            code="window-size",
            do="Give one of the two.",
        )
    if schedules:
        made = schedules[0].window_sizes
    if global_batch_size is not None and made.sizes != 1:
        given = f"accumulate_grad_batches={sizes!r}" if not schedules else type(schedules[0]).__name__
        raise ConfigError(
            f"Both global_batch_size={global_batch_size} and {given} were given.",
            code="batch-split",
            do="Give one of the two: each follows from the other.",
        )
    return made


def check_manual(trainer: Any, strategy: Any) -> None:
    """Refuse arguments that say how the loop steps, where the module does it itself.

    Raises:
        ConfigError: One was given.
    """
    given = {
        "global_batch_size": trainer.global_batch_size is not None,
        "accumulate_grad_batches": trainer.window_sizes.sizes != 1,
        "gradient_clip_val": bool(trainer.gradient_clip_val),
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{name} was given, but the module steps by itself (automatic_optimization=False).",
                code="manual-optimization",
                do="Use self.window(optimizer, size=..., max_norm=...) in training_step.",
            )
    if len(strategy.running.devices) > 1:
        raise ConfigError(
            "Manual optimisation does not run over the replicas of DataParallel.",
            code="manual-optimization",
            do="Use strategy='ddp'.",
        )
    if strategy.traits.communicates_in_forward:
        raise ConfigError(
            f"Manual optimisation runs beside the wrapper; strategy={strategy.traits.name!r} gathers parameters in it.",
            code="manual-optimization",
            do="Use strategy='ddp', or automatic optimisation.",
        )
