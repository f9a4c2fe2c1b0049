"""What callbacks that watch a metric share: its name, its direction, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.base.errors import ConfigError


def require_mode(owner: str, mode: str) -> None:
    """Refuse a mode that is neither `"min"` nor `"max"`.

    Raises:
        ConfigError: It is another one.
    """
    if mode not in ("min", "max"):
        raise ConfigError(f"{owner} got mode={mode!r}.", code="monitor-mode", do="Use 'min' or 'max'.")


def monitor_missing(owner: str, monitor: str, metrics: Mapping[str, Any]) -> ConfigError:
    """The error for a monitored name that nobody logged."""
    return ConfigError(
        f"{owner} monitors {monitor!r}, which was not logged; logged are {', '.join(sorted(metrics)) or 'none'}.",
        code="monitor-missing",
        do=f"Call self.log({monitor!r}, ...) in a step or hook before this moment, or monitor one of those.",
    )


def has_validation(trainer: Any) -> bool:
    """The run has batches of validation."""
    return any(number > 0 for number in trainer.num_val_batches)


class MonitorPlace:
    """Whether a metric is looked at after validation or at the end of the epoch.

    If the user did not say it, it is learnt: a name that is there before any validation, or not there after one, is
    reported at the end of the epoch.

    Args:
        monitor: The metric; `None` for none.
        at_epoch_end: What the user said.
    """

    def __init__(self, monitor: str | None, at_epoch_end: bool | None) -> None:
        self.monitor = monitor
        self.at_epoch_end = at_epoch_end
        self.is_of_epoch = monitor is None
        self.has_validated = False
        self._found: Any = None  # what was there when training began: of a run that this one goes on from

    def start(self, metrics: Mapping[str, Any]) -> None:
        """Training begins."""
        self.has_validated = False
        self._found = metrics.get(self.monitor) if self.monitor is not None else None

    def is_validation(self, metrics: Mapping[str, Any]) -> bool:
        """At the end of a validation: whether this is the place."""
        self.has_validated = True
        if self.at_epoch_end is not None:
            return not self.at_epoch_end
        self.is_of_epoch = self.is_of_epoch or self.monitor not in metrics
        return not self.is_of_epoch

    def is_epoch_end(self, trainer: Any) -> bool:
        """At the end of an epoch: whether this is the place."""
        if not has_validation(trainer):
            return True
        if self.at_epoch_end is not None:
            return self.at_epoch_end
        value = trainer.callback_metrics.get(self.monitor)
        is_reported = value is not None and value is not self._found
        self.is_of_epoch = self.is_of_epoch or (not self.has_validated and is_reported)
        return self.is_of_epoch
