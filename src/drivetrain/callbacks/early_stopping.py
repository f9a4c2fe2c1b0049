"""Stop when a value has stopped getting better."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.monitor import MonitorPlace, monitor_missing, require_mode
from drivetrain.loop.callback import Callback


class EarlyStopping(Callback):
    """Stops training when a logged value has stopped getting better. All ranks see the same value, and stop together.

    Args:
        monitor: The logged name.
        min_delta: A change that is not greater than this is none.
        patience: Checks in a row without a better value after which training stops.
        verbose: Print what happens.
        mode: Whether a small (`"min"`) or a great (`"max"`) value is good.
        strict: A value that was not logged is an error; otherwise it is said once, and nothing is checked.
        check_finite: Stop when the value is inf or nan.
        stopping_threshold: Stop as soon as the value is better than this.
        divergence_threshold: Stop as soon as the value is worse than this.
        check_on_train_epoch_end: Check at the end of each epoch of training, or after each validation. By default after
            validation if the value comes from there.
        log_rank_zero_only: With `verbose`, print on rank 0 alone; otherwise each rank prints what it decided.

    Attributes:
        wait_count: Checks in a row without a better value so far.
        stopped_epoch: The epoch in which it stopped training; 0 if it did not.
        best_score: The best value so far, 0-dim.
        stopping_reason: Why it stopped; empty if it did not.

    Raises:
        ConfigError: `monitor` was not logged, at the first check.
    """

    runs_last = True

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        require_mode("EarlyStopping", mode)
        if patience < 0:
            raise ConfigError(
                f"EarlyStopping got patience={patience}.",
                code="patience",
                do="Use the number of checks to wait, from 0.",
            )
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self.patience = patience
        self.verbose = verbose
        self.mode = mode
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.log_rank_zero_only = log_rank_zero_only
        self.wait_count = 0
        self.stopped_epoch = 0
        self.best_score: Tensor = torch.tensor(math.inf if mode == "min" else -math.inf)
        self.stopping_reason = ""
        self._place = MonitorPlace(monitor, check_on_train_epoch_end)
        self._is_training = False
        self._checked_step = -1
        self._has_said_missing = False

    # ---------------------------------------------------------------- state

    @property
    def state_key(self) -> str:
        """Tells callbacks apart by what they monitor."""
        return f"{type(self).__qualname__}(monitor={self.monitor!r}, mode={self.mode!r})"

    def state_dict(self) -> dict[str, Any]:
        """Count, best value, and the step of the last check. All ranks."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "checked_step": self._checked_step,
            "is_of_epoch": self._place.is_of_epoch,
            "stopping_reason": self.stopping_reason,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them. All ranks."""
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = torch.as_tensor(state_dict["best_score"])
        self._checked_step = state_dict["checked_step"]
        self._place.is_of_epoch = state_dict["is_of_epoch"]
        self.stopping_reason = state_dict.get("stopping_reason", "")

    # ---------------------------------------------------------------- hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Checks count from here on. A run that goes on from where it was stopped stops, unless patience has grown."""
        if self._checked_step != trainer.global_step:
            self._checked_step = -1  # of another run of this callback
            self.stopping_reason = ""
        elif self.stopping_reason and not 0 < self.wait_count < self.patience:
            trainer.should_stop = True
        self._is_training = True
        self._place.start(trainer.callback_metrics)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """No more checks."""
        self._is_training = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """No more checks."""
        self._is_training = False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Check, if the value comes from validation."""
        if self._is_training and self._place.is_validation(trainer.callback_metrics):
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Check, if the value comes from training."""
        if self._place.is_epoch_end(trainer):
            self._check(trainer)

    def _check(self, trainer: Any) -> None:
        # A run that goes on from the end of an epoch comes here again: the same value must not count twice.
        if trainer.fast_dev_run or trainer.global_step == self._checked_step:
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            error = monitor_missing(type(self).__name__, self.monitor, metrics)
            if self.strict:
                raise error
            if not self._has_said_missing:
                self._has_said_missing = True
                warnings.warn(f"{error.what} Nothing is checked.", stacklevel=2)
            return
        self._checked_step = trainer.global_step
        before = float(self.best_score)
        reason = self.judge(metrics[self.monitor])
        if reason:
            self.stopping_reason = reason
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self._say(trainer, f"Stopped: {reason}")
        elif self.wait_count == 0:
            self._say(trainer, f"{self.monitor} went from {before:.5g} to {float(self.best_score):.5g}.")

    def judge(self, value: Any) -> str:
        """Take note of a value.

        Ranks: any; nothing is sent.

        Returns:
            Why to stop; empty to go on.
        """
        score = torch.as_tensor(value).detach().cpu().clone()
        number, best = float(score), float(self.best_score)
        sign = 1.0 if self.mode == "max" else -1.0
        if self.check_finite and not math.isfinite(number):
            return f"{self.monitor} is {number}; the best was {best:.5g}."
        if self.stopping_threshold is not None and sign * number > sign * self.stopping_threshold:
            self.best_score = score
            return f"{self.monitor}={number:.5g} is better than stopping_threshold={self.stopping_threshold}."
        if self.divergence_threshold is not None and sign * number < sign * self.divergence_threshold:
            return f"{self.monitor}={number:.5g} is worse than divergence_threshold={self.divergence_threshold}."
        if sign * (number - best) > self.min_delta:
            self.best_score = score
            self.wait_count = 0
            return ""
        self.wait_count += 1
        if self.wait_count < self.patience:
            return ""
        return f"{self.monitor} was not better than {best:.5g} in {self.wait_count} checks."

    def _say(self, trainer: Any, text: str) -> None:
        if not self.verbose or (self.log_rank_zero_only and not trainer.is_global_zero):
            return
        rank = f"[rank {trainer.global_rank}/{trainer.world_size}] " if trainer.world_size > 1 else ""
        print(f"{rank}Epoch {trainer.current_epoch}: {text}")
