"""What `configure_optimizers` returned, in all its accepted shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from drivetrain.base.errors import ConfigError, OptimizerError
from drivetrain.base.interval import Interval
from drivetrain.fabric.fabric_optimizer import check_parameters

_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")


@dataclass
class LRSchedulerConfig:
    """A scheduler and when it advances.

    Attributes:
        scheduler: The user's.
        interval: `"step"` (optimizer steps), `"epoch"`, `"micro-batch"`, `"sample"`, or a number of them
            (`"250 steps"`). It advances once for each multiple that was crossed, so that the rate at a sample does not
            depend on how samples are cut into windows.
        frequency: Every so many intervals.
        monitor: For a plateau scheduler: the logged name that it watches.
        strict: A missing `monitor` is an error; otherwise the scheduler is skipped with a warning.
        name: For the learning-rate monitor.
        reduce_on_plateau: The scheduler takes the monitored value.
        own_step: The module's, called with the scheduler and that value or `None`, instead of `scheduler.step`.
    """

    scheduler: Any
    interval: str | Interval = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    reduce_on_plateau: bool = False
    own_step: Callable[[Any, Any], None] | None = field(default=None, init=False, repr=False)

    @property
    def every(self) -> Interval:
        """Between two advances.

        Raises:
            ConfigError: `interval` is none.
        """
        is_bare = isinstance(self.interval, str) and self.interval[:1].isalpha()
        return Interval.parse(f"1 {self.interval}" if is_bare else self.interval) * self.frequency

    def advance(self, metrics: Mapping[str, Any], number: int = 1) -> None:
        """Move the scheduler on by a number of intervals; one that follows a metric looks at it once.

        Raises:
            OptimizerError: The monitored value was not logged.
        """
        if not self.reduce_on_plateau:
            for _ in range(number):
                self.scheduler.step() if self.own_step is None else self.own_step(self.scheduler, None)
            return
        if self.monitor is not None and self.monitor in metrics:
            value = float(metrics[self.monitor])
            self.scheduler.step(value) if self.own_step is None else self.own_step(self.scheduler, value)
            return
        text = f"ReduceLROnPlateau monitors {self.monitor!r}, which was not logged; logged are {sorted(metrics)}."
        if self.strict:
            raise OptimizerError(
                text, code="scheduler-monitor", do="Log it before the epoch ends, or pass 'strict': False."
            )
        warnings.warn(text, stacklevel=2)


def read_configuration(configured: Any, module: nn.Module) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Optimizers and schedulers of what `configure_optimizers` returned.

    Raises:
        OptimizerError: It has none of the accepted shapes, or an optimizer holds strange parameters.
    """
    optimizers: list[Any] = []
    schedulers: list[Any] = []
    for part in _parts(configured):
        if isinstance(part, Mapping):
            unknown = sorted(set(part) - {"optimizer", "lr_scheduler", "frequency", "monitor"})
            if "optimizer" not in part or unknown:
                raise _wrong_shape(f"a dict with the keys {sorted(map(str, part))}")
            optimizers.append(part["optimizer"])
            if part.get("lr_scheduler") is not None:
                schedulers.append(_with_monitor(part["lr_scheduler"], part.get("monitor")))
        else:
            optimizers.append(part)
    if _is_pair_of_lists(configured):
        schedulers = list(configured[1])
    if not optimizers:
        warnings.warn(f"configure_optimizers returned {configured!r}: nothing will be trained.", stacklevel=2)
    for optimizer in optimizers:
        _check_optimizer(optimizer, module)
    return optimizers, [_make_config(scheduler, optimizers) for scheduler in schedulers]


def _parts(configured: Any) -> list[Any]:
    if configured is None:
        return []
    if _is_pair_of_lists(configured):
        return list(configured[0])
    if isinstance(configured, (list, tuple)):
        return list(configured)
    return [configured]


def _is_pair_of_lists(configured: Any) -> bool:
    return (
        isinstance(configured, (list, tuple))
        and len(configured) == 2
        and all(isinstance(one, (list, tuple)) for one in configured)
    )


def _with_monitor(scheduler: Any, monitor: str | None) -> Any:
    if monitor is None:
        return scheduler
    given = dict(scheduler) if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    return {"monitor": monitor, **given}


def _make_config(scheduler: Any, optimizers: list[Optimizer]) -> LRSchedulerConfig:
    if isinstance(scheduler, Mapping):
        unknown = sorted(set(scheduler) - set(_KEYS))
        if unknown or "scheduler" not in scheduler:
            raise OptimizerError(
                f"lr_scheduler has the keys {sorted(scheduler)}.",
                code="scheduler",
                do=f"It needs 'scheduler' and may have {', '.join(_KEYS[1:])}.",
            )
        config = LRSchedulerConfig(**scheduler)
    else:
        config = LRSchedulerConfig(scheduler)
    config.reduce_on_plateau = config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)
    _check_interval(config)
    if config.reduce_on_plateau and config.monitor is None:
        raise OptimizerError(
            "ReduceLROnPlateau was given no 'monitor'.", code="scheduler-monitor", do='Add "monitor": "val_loss".'
        )
    owner = getattr(config.scheduler, "optimizer", None)
    if owner is not None and all(owner is not optimizer for optimizer in optimizers):
        raise OptimizerError(
            f"{type(config.scheduler).__name__} schedules an optimizer that configure_optimizers did not return.",
            code="scheduler",
            do="Return that optimizer too.",
        )
    return config


def _check_interval(config: LRSchedulerConfig) -> None:
    """Refuse what is no interval, or no number of them; seconds too: no run could be repeated."""
    is_number = isinstance(config.frequency, int) and not isinstance(config.frequency, bool) and config.frequency >= 1
    cause = None
    try:
        is_interval = is_number and config.every.unit != "second"
    except ConfigError as error:
        is_interval, cause = False, error
    if not is_interval:
        raise OptimizerError(
            f"lr_scheduler has interval={config.interval!r}, frequency={config.frequency!r}.",
            code="scheduler",
            do='Use interval "step" (optimizer steps), "epoch", "micro-batch", "sample" or a number of them such as '
            '"250 steps", and a frequency of 1 or more.',
        ) from cause


def _check_optimizer(optimizer: Any, module: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise _wrong_shape(f"a {type(optimizer).__name__} in the place of an optimizer")
    check_parameters(optimizer, module, do="Make the optimizer from self.parameters(), after all layers are made.")


def _wrong_shape(what: str) -> OptimizerError:
    return OptimizerError(
        f"configure_optimizers returned {what}.",
        code="configure-optimizers",
        do='Return an optimizer, a list, {"optimizer": ..., "lr_scheduler": ...}, or ([optimizers], [schedulers]).',
    )
