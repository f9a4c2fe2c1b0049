"""Which rank makes the others wait."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.callbacks.shared_interval import SharedInterval
from drivetrain.loop.callback import Callback

_log = logging.getLogger("drivetrain.callbacks")


class StragglerMonitor(Callback):
    """Says which rank is slower than the others before it meets them, and by how much.

    A rank's own time of a step is that from the end of the last one to the backward in which gradients are synced:
    data, transfer, forward, and every backward but that one. From there on all ranks wait for the slowest. Under a
    strategy that communicates in forward (FSDP) it ends with the first batch. Times are the host's: nothing waits for a
    device.

    Args:
        every: Between two looks, in each of which ranks exchange one number each.
        threshold: What is said: the slowest rank is above the median by this part of a whole step.
        clock: Seconds.

    Attributes:
        own_s: Each rank's own time of a step, the mean over the last interval.
        slowest: The slowest rank, where it was above the threshold; else `None`.

    Raises:
        ConfigError: The threshold is not above 0.
    """

    runs_last = True

    def __init__(
        self,
        every: str | timedelta | Interval = "100 steps",
        *,
        threshold: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not threshold > 0:
            raise ConfigError(
                f"StragglerMonitor got threshold={threshold!r}.", code="straggler", do="Use a part of a step, e.g. 0.1."
            )
        self.threshold = threshold
        self.own_s: list[float] = []
        self.slowest: int | None = None
        self._due = SharedInterval(Interval.parse(every, name="every"))
        self._clock = clock
        self._begin_s = self._step_s = self._met_s = 0.0
        self._sum_s, self._num = 0.0, 0
        self._meets_in_forward = self._has_met = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        self._due.start(trainer)
        self._meets_in_forward = trainer.strategy.traits.communicates_in_forward
        self._restart()

    def _restart(self) -> None:
        self._sum_s, self._num = 0.0, 0
        self._begin_s = self._step_s = self._met_s = self._clock()
        self._has_met = False

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What was between two epochs is no part of a step."""
        self._skip()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Nor is validation."""
        self._skip()

    def _skip(self) -> None:
        now = self._clock()
        self._begin_s += now - self._step_s  # of the interval, for the mean of a step
        self._step_s = self._met_s = now

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the time, where ranks meet in forward."""
        if self._meets_in_forward and not self._has_met:
            self._met_s, self._has_met = self._clock(), True

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note the time; the last backward of a window counts."""
        if not self._meets_in_forward:
            self._met_s = self._clock()

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Add up; where the interval is over, compare.

        Ranks: all (one small message for each interval, none on one rank).
        """
        self._sum_s += self._met_s - self._step_s
        self._num += 1
        self._step_s = self._met_s = self._clock()
        self._has_met = False
        if not self._due.is_over(trainer):
            return
        self._compare(trainer)
        self._restart()

    def _compare(self, trainer: Any) -> None:
        world, rank = trainer.world_size, trainer.global_rank
        own, step = self._sum_s / self._num, (self._step_s - self._begin_s) / self._num
        told = [0.0] * (world + 1)
        told[rank], told[-1] = own, step / world
        if world > 1:
            told = trainer.collectives.agree(told)
        self.own_s, step = told[:-1], told[-1]
        most = max(self.own_s)
        median = statistics.median_low(self.own_s)
        rank = self.own_s.index(most)
        self.slowest = rank if most - median > self.threshold * step else None
        values = {"straggler/rank": float(rank), "straggler/own_s": most, "straggler/median_own_s": median}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
        if self.slowest is not None and trainer.is_global_zero:
            _log.warning(
                "Rank %d makes the others wait: a step of %.1f ms has %.1f ms before its sync there, %.1f ms on the "
                "median rank (mean of %d steps, at step %d).",
                rank, 1e3 * step, 1e3 * most, 1e3 * median, self._num, trainer.global_step,
            )  # fmt: skip
