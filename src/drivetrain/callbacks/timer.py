"""Stop when the time is up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback

_DURATION = re.compile(r"(\d+):(\d+):(\d+):(\d+)")


class Timer(Callback):
    """Stops training once it has taken so long, and says how long each stage took.

    Args:
        duration: A `timedelta`, its arguments as a mapping (`{"hours": 2}`), or text `"DD:HH:MM:SS"`; `None` only takes
            the time.
        interval: Look at the clock after each `"step"` or `"epoch"`.
        verbose: Print that the time is up, on rank 0.
        clock: Seconds.

    Raises:
        ConfigError: `duration` or `interval` cannot be understood.
    """

    def __init__(
        self,
        duration: timedelta | Mapping[str, int] | str | None = None,
        interval: str = "step",
        verbose: bool = True,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise ConfigError(f"Timer got interval={interval!r}.", code="timer", do="Use 'step' or 'epoch'.")
        self.duration_s = _seconds(duration)
        self.interval = interval
        self.verbose = verbose
        self._clock = clock
        self._before_s = 0.0  # training before this process
        self._started: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds of `"train"`, `"validate"` or `"test"` so far; training with that before a resume.

        Ranks: any.
        """
        before = self._before_s if stage == "train" else 0.0
        if stage not in self._started:
            return before
        return before + self._ended.get(stage, self._clock()) - self._started[stage]

    def time_remaining(self) -> float | None:
        """Seconds of training that are left; `None` without a duration.

        Ranks: any.
        """
        return None if self.duration_s is None else self.duration_s - self.time_elapsed()

    def state_dict(self) -> dict[str, Any]:
        """Seconds of training. All ranks."""
        return {"train_s": self.time_elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there. All ranks."""
        self._before_s = state_dict["train_s"]
        self._started.pop("train", None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start("train")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._ended["train"] = self._clock()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start("validate")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._ended["validate"] = self._clock()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._start("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._ended["test"] = self._clock()

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the clock."""
        if self.interval == "step":
            self._look(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the clock."""
        if self.interval == "epoch":
            self._look(trainer)

    def _start(self, stage: str) -> None:
        self._started[stage] = self._clock()
        self._ended.pop(stage, None)

    def _look(self, trainer: Any) -> None:
        if self.duration_s is None or trainer.should_stop or self.time_elapsed() < self.duration_s:
            return
        trainer.should_stop = True
        if self.verbose and trainer.is_global_zero:
            print(f"Step {trainer.global_step}: the time is up after {timedelta(seconds=int(self.time_elapsed()))}.")


def _seconds(duration: timedelta | Mapping[str, int] | str | None) -> float | None:
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        match = _DURATION.fullmatch(duration.strip())
        if match is not None:
            days, hours, minutes, seconds = map(int, match.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    else:
        try:
            return timedelta(**duration).total_seconds()
        except TypeError:
            pass
    raise ConfigError(
        f"Timer got duration={duration!r}.",
        code="timer",
        do="Use a timedelta, {'hours': 2}, or '00:02:00:00' for days, hours, minutes and seconds.",
    )
