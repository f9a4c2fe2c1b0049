"""Whether an interval is over, answered alike on all ranks."""

from __future__ import annotations

import math
from typing import Any

from drivetrain.base.interval import Crossings, Interval


class SharedInterval:
    """An interval of a trainer's run that ends between two optimizer steps.

    Args:
        interval: In any unit.
    """

    def __init__(self, interval: Interval) -> None:
        self.interval = interval
        self._crossings = Crossings(interval)

    def start(self, trainer: Any, owner: Any = None) -> None:
        """Training begins, or goes on.

        Args:
            trainer: The run.
            owner: The callback. Where the run goes on from the middle of its hooks, it may have to look at a step that
                is counted already.

        Raises:
            ConfigError: A part of an epoch was asked for, and epochs have no length that is known.
        """
        share = trainer.collectives.broadcast if trainer.world_size > 1 else None
        self._crossings = Crossings(self.interval, share)
        run = getattr(trainer, "run", None)
        left = run.left_over if owner is not None and run is not None else None
        progress = trainer.progress if left is None else left.counted_from(owner.state_key, trainer.progress)
        self._crossings.begin(progress, self._num_rounds(trainer))

    def is_over(self, trainer: Any) -> bool:
        """A multiple was crossed by the step that was just made.

        Ranks: all, after each optimizer step.
        """
        return self._crossings.take(trainer.progress, self._num_rounds(trainer)) > 0

    def _num_rounds(self, trainer: Any) -> int | None:
        if self.interval.unit != "epoch" or trainer.num_training_batches == math.inf:
            return None
        return int(trainer.num_training_batches)
