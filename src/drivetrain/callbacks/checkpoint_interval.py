"""When a checkpoint is due, in whichever way it was said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval


@dataclass(frozen=True)
class CheckpointInterval:
    """When a checkpoint is due: one of these, under its familiar name.

    Attributes:
        every_n_train_steps: Optimizer steps; 0 for none.
        train_time_interval: Time of training.
        every_n_epochs: Whole epochs; 0 for none.
        every: Between two steps: any interval but whole epochs.
    """

    every_n_train_steps: int = 0
    train_time_interval: timedelta | None = None
    every_n_epochs: int = 0
    every: Interval | None = None

    @property
    def key(self) -> str:
        """Tells intervals apart in the state of a checkpoint."""
        seconds = None if self.train_time_interval is None else self.train_time_interval.total_seconds()
        key = (
            f"every_n_train_steps={self.every_n_train_steps}, every_n_epochs={self.every_n_epochs}, "
            f"train_time_interval={seconds}"
        )
        is_familiar = self.every is None or self.every.unit in ("step", "second")
        return key if is_familiar else f"{key}, every={self.every}"


def read_checkpoint_interval(
    every: str | timedelta | Interval | None,
    every_n_train_steps: int | None,
    train_time_interval: timedelta | None,
    every_n_epochs: int | None,
) -> CheckpointInterval:
    """The one interval that was given; each epoch, if none was.

    Raises:
        ConfigError: Several were given, or one that means nothing.
    """
    names = ("every", "every_n_train_steps", "train_time_interval", "every_n_epochs")
    values = (every, every_n_train_steps, train_time_interval, every_n_epochs)
    given = [f"{name}={value!r}" for name, value in zip(names, values, strict=True) if value]
    numbers = [value for value in (every_n_train_steps, every_n_epochs) if value is not None]
    if len(given) > 1 or any(value < 0 for value in numbers):
        raise ConfigError(
            f"ModelCheckpoint({', '.join(given)}): one interval at a time.",
            code="checkpoint-interval",
            do="Give one of them, from 1; add a second ModelCheckpoint for a second interval.",
        )
    if every is not None:
        interval = Interval.parse(every, name="every")
    elif every_n_train_steps:
        interval = Interval(every_n_train_steps, "steps")
    elif train_time_interval is not None:
        interval = Interval.parse(train_time_interval, name="train_time_interval")
    else:
        return CheckpointInterval(every_n_epochs=1 if every_n_epochs is None else every_n_epochs)
    if interval.whole_epochs:
        return CheckpointInterval(every_n_epochs=interval.whole_epochs)
    is_time = interval.unit == "second"
    return CheckpointInterval(
        every_n_train_steps=int(interval.length) if interval.unit == "step" else 0,
        train_time_interval=timedelta(seconds=float(interval.length)) if is_time else None,
        every=interval,
    )
