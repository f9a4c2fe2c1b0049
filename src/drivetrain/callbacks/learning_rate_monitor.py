"""Write the learning rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.callbacks.shared_interval import SharedInterval
from drivetrain.loop.callback import Callback


class LearningRateMonitor(Callback):
    """Writes the learning rate of every parameter group to the loggers.

    The value in the row of a step is the one with which that step was made: it is read before the step, and written
    after it.

    Args:
        logging_interval: `"step"`: in the steps that write other values, too (`log_every_n_steps`, `log_every`);
            `"epoch"`: when an epoch begins; `None`: both, but no step twice. Or an interval of its own, such as
            `"10_000 samples"`.
        log_momentum: Momentum too (of Adam and its kin, the first beta).
        log_weight_decay: Weight decay too.

    Attributes:
        lrs: The values that were written last, by name.
    """

    def __init__(
        self,
        logging_interval: str | timedelta | Interval | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        self.logging_interval = logging_interval
        is_own = logging_interval not in (None, "step", "epoch")
        self._interval = SharedInterval(_parse(logging_interval)) if is_own else None
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.lrs: dict[str, float] = {}
        self._written_step = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count, and refuse a run in which nothing would be written.

        Raises:
            ConfigError: There is no logger.
        """
        if self._interval is not None:
            self._interval.start(trainer, self)
        if not trainer.loggers and not trainer.fast_dev_run:
            raise ConfigError(
                "LearningRateMonitor has no logger to write to.",
                code="no-logger",
                do="Drop it, or give the Trainer a logger.",
            )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Read before the step; only before one that may be written."""
        if self.logging_interval == "epoch":
            return
        if self._interval is not None or (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            self.lrs = self.read(trainer.optimizers, trainer.lr_scheduler_configs)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what was read before the step.

        Ranks: all.
        """
        if self._interval is not None:
            is_due = self._interval.is_over(trainer)
        else:
            is_due = self.logging_interval != "epoch" and trainer.is_log_step
        if is_due:
            self._write(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Read and write."""
        is_new = self.logging_interval == "epoch" or trainer.global_step != self._written_step
        if self.logging_interval in (None, "epoch") and is_new:
            self.lrs = self.read(trainer.optimizers, trainer.lr_scheduler_configs)
            self._write(trainer)

    def _write(self, trainer: Any) -> None:
        self._written_step = trainer.global_step
        for logger in trainer.loggers:
            logger.log_metrics(self.lrs, step=trainer.global_step)

    def read(self, optimizers: Sequence[Any], configs: Sequence[Any]) -> dict[str, float]:
        """The values now, by name: `lr-Adam`, `lr-Adam/pg2`, or below the name that the scheduler was given."""
        given = {id(config.scheduler.optimizer): config.name for config in configs if config.name}
        kinds: Counter[str] = Counter()
        values: dict[str, float] = {}
        for optimizer in optimizers:
            kind = f"lr-{type(optimizer).__name__}"
            kinds[kind] += 1
            base = given.get(id(optimizer)) or (kind if kinds[kind] == 1 else f"{kind}-{kinds[kind] - 1}")
            for index, group in enumerate(optimizer.param_groups):
                name = base if len(optimizer.param_groups) == 1 else f"{base}/{group.get('name', f'pg{index + 1}')}"
                values[name] = float(group["lr"])
                if self.log_momentum:
                    momentum = group["betas"][0] if "betas" in group else group.get("momentum", 0.0)
                    values[f"{name}-momentum"] = float(momentum)
                if self.log_weight_decay:
                    values[f"{name}-weight_decay"] = float(group.get("weight_decay", 0.0))
        return values


def _parse(value: Any) -> Interval:
    try:
        return Interval.parse(value)
    except ConfigError as error:
        raise ConfigError(
            f"LearningRateMonitor got logging_interval={value!r}.",
            code="logging-interval",
            do="Use 'step', 'epoch', None, or an interval with its unit such as \"10_000 samples\".",
        ) from error
