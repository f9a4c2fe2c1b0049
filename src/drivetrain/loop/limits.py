"""When a run ends, validates and logs, counted on monotone counters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta

from drivetrain.base.errors import ConfigError, DataError
from drivetrain.base.interval import Interval
from drivetrain.base.progress import Progress
from drivetrain.fabric.window_job import WindowJob


@dataclass(frozen=True)
class Limits:
    """The ends and intervals of a run.

    Attributes:
        max_epochs: -1 for no end.
        max_steps: Optimizer steps; -1 for no end.
        min_epochs: Not stopped early before.
        min_steps: Not stopped early before.
        val_every_epochs: Validate after each so many epochs; `None` where `val_interval` is counted over epochs.
        val_interval: Validate after each so many micro-batches of an epoch (`int`), after each such part of it
            (`float`), or at the multiples of an interval that is counted from the start of the run.
        log_every: Write values of steps at the multiples of this.
    """

    max_epochs: int = 1000
    max_steps: int = -1
    min_epochs: int = 0
    min_steps: int = 0
    val_every_epochs: int | None = 1
    val_interval: int | float | str | timedelta | Interval = 1.0
    log_every: Interval = field(default_factory=lambda: Interval(50, "steps"))

    def __post_init__(self) -> None:
        for name in ("max_epochs", "max_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < -1:
                raise ConfigError(
                    f"{name}={value!r} is not a number.", code="limits", do="Use 0 or more, or -1 for no end."
                )
        every = self.val_every_epochs
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ConfigError(
                f"check_val_every_n_epoch={every!r} is not a number of epochs.",
                code="val-interval",
                do="Use 1 or more; None counts micro-batches over epochs.",
            )
        if isinstance(self.val_interval, (str, timedelta, Interval)):
            self._count_over_run(Interval.parse(self.val_interval, name="val_check_interval"))
        else:
            self._check_val_interval(self.val_interval)

    def _count_over_run(self, interval: Interval) -> None:
        every, epochs = self.val_every_epochs, interval.whole_epochs
        if every not in (None, 1):
            raise ConfigError(
                f"val_check_interval={interval!s} is counted over epochs, but check_val_every_n_epoch={every}.",
                code="val-interval",
                do="Leave check_val_every_n_epoch out.",
            )
        object.__setattr__(self, "val_interval", interval if epochs is None else 1.0)
        object.__setattr__(self, "val_every_epochs", epochs)

    def _check_val_interval(self, value: int | float) -> None:
        is_part = isinstance(value, float) and 0 < value <= 1
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not (is_part or is_count):
            raise ConfigError(
                f"val_check_interval={value!r} is neither a part of an epoch nor a number of micro-batches.",
                code="val-interval",
                do='Use a float from 0 to 1, an int from 1, or text with a unit such as "500 steps".',
            )
        if self.val_every_epochs is not None:
            return
        if not is_count:
            raise ConfigError(
                f"check_val_every_n_epoch=None counts over epochs, but val_check_interval={value!r}.",
                code="val-interval",
                do='Give val_check_interval as an int, or as text with a unit such as "0.5 epochs".',
            )
        object.__setattr__(self, "val_interval", Interval(value, "micro-batches"))

    def is_reached(self, progress: Progress) -> bool:
        """The run has done all that it should."""
        return self.steps_reached(progress) or (0 <= self.max_epochs <= progress.epoch)

    def steps_reached(self, progress: Progress) -> bool:
        """The run has made all optimizer steps that it should."""
        return 0 <= self.max_steps <= progress.step

    def may_stop(self, progress: Progress) -> bool:
        """An early stop is allowed by now."""
        return progress.step >= self.min_steps and progress.epoch >= self.min_epochs

    def require_reachable(self, rounds: int | float) -> None:
        """Validation comes in an epoch of so many micro-batches (inf if it has no length).

        Raises:
            ConfigError: It would never come.
        """
        interval = self.val_interval
        if isinstance(interval, int) and interval > rounds:
            raise ConfigError(
                f"val_check_interval={interval}, but an epoch has {rounds} micro-batches: validation would never run.",
                code="val-interval",
                do=f'Use a smaller number, or "{interval} micro-batches" to count over epochs.',
            )
        if isinstance(interval, float) and interval < 1 and rounds == math.inf:
            raise ConfigError(
                f"val_check_interval={interval} is a part of the training loader, which has no length.",
                code="val-interval",
                do='Count it: "500 steps".',
            )

    def validates_within(self, progress: Progress, rounds: int | None, before: int) -> bool:
        """Validation is due after the window that just ended, inside an epoch; not if an interval counts over the run.

        Args:
            progress: After the window.
            rounds: Micro-batches of the epoch, if known.
            before: `epoch_micro_step` before the window.
        """
        interval = self.val_interval
        assert isinstance(interval, (int, float)) and self.val_every_epochs is not None
        if (progress.epoch + 1) % self.val_every_epochs:
            return False
        if isinstance(interval, float):
            if interval == 1.0 or rounds is None:
                return False
            interval = max(1, math.floor(rounds * interval))
        return progress.epoch_micro_step // interval > before // interval

    def validates_at_epoch_end(self, progress: Progress) -> bool:
        """Validation is due at the end of the epoch that just ended (before it is counted)."""
        if self.val_every_epochs is None or isinstance(self.val_interval, int):
            return False
        return self.val_interval == 1.0 and (progress.epoch + 1) % self.val_every_epochs == 0


def no_batches(job: WindowJob, limit_batches: int | None) -> DataError:
    """The error for an epoch without a window."""
    if job.skipped.get("drop"):
        what = "remainder='drop' leaves no window: an epoch has fewer micro-batches than one needs."
        do = "Make windows smaller, or use remainder='step' or 'carry'."
    elif limit_batches == 0:
        what, do = "limit_train_batches leaves no batch of the training loader.", "Leave at least one."
    else:
        what, do = "The training loader gave no batch.", "Give it at least one."
    return DataError(what, code="no-batches", do=do)
