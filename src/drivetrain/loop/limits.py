"""When a run ends, validates and logs, counted on monotone counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drivetrain.base.errors import ConfigError
from drivetrain.base.progress import Progress


@dataclass(frozen=True)
class Limits:
    """The ends and intervals of a run.

    Attributes:
        max_epochs: -1 for no end.
        max_steps: Optimizer steps; -1 for no end.
        min_epochs: Not stopped early before.
        min_steps: Not stopped early before.
        val_every_epochs: Validate after each so many epochs; `None` counts micro-batches over epochs.
        val_interval: Validate after each so many micro-batches (`int`), or after each such part of an epoch (`float`).
        log_every: Write values of steps after each so many optimizer steps.
    """

    max_epochs: int = 1000
    max_steps: int = -1
    min_epochs: int = 0
    min_steps: int = 0
    val_every_epochs: int | None = 1
    val_interval: int | float = 1.0
    log_every: int = 50

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
        value = self.val_interval
        is_part = isinstance(value, float) and 0 < value <= 1
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not (is_part or is_count):
            raise ConfigError(
                f"val_check_interval={value!r} is neither a part of an epoch nor a number of micro-batches.",
                code="val-interval",
                do="Use a float from 0 to 1, or an int from 1.",
            )
        if self.val_every_epochs is None and not is_count:
            raise ConfigError(
                f"check_val_every_n_epoch=None counts micro-batches over epochs, but val_check_interval={value!r}.",
                code="val-interval",
                do="Give val_check_interval as an int.",
            )

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
        """An epoch is long enough to be validated; one of unknown length is taken to be.

        Raises:
            ConfigError: Validation would never come.
        """
        interval = self.val_interval
        if self.val_every_epochs is None or not isinstance(interval, int) or interval <= rounds:
            return
        raise ConfigError(
            f"val_check_interval={interval}, but an epoch has {rounds} micro-batches: validation would never run.",
            code="val-interval",
            do="Use a smaller number, or check_val_every_n_epoch=None to count over epochs.",
        )

    def validates_within(self, progress: Progress, rounds: int | None, before: int) -> bool:
        """Validation is due after the window that just ended, inside an epoch.

        Args:
            progress: After the window.
            rounds: Micro-batches of the epoch, if known.
            before: `epoch_micro_step` (or `micro_step`, counting over epochs) before the window.
        """
        interval = self.val_interval
        if self.val_every_epochs is None:
            return progress.micro_step // int(interval) > before // int(interval)
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
