"""A window in which every rank takes part in every micro-batch: where each forward communicates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivetrain.fabric.window import END, Window


class JointWindow(Window):
    """All ranks run equally many micro-batches: with one of their own, or idle.

    Where the number of micro-batches is not known, ranks tell each other before each one whether any has another.
    """

    def __iter__(self) -> Iterator[Any]:
        """This rank's micro-batches; in those that it has not, or has no loss for, it repeats what the others send.

        Ranks: all.
        """
        job = self._job
        for number in range(self.rounds):
            batch = self._take()
            is_last = number == self.rounds - 1 and not self._is_open
            if not self._is_sized and not is_last:
                is_last = not job.collectives.agree([float(self._next is not END)])[0]
            self._has_run, self._ends = False, is_last
            with job.strategy.gradient_sync(job.prepared, is_last):
                if batch is not END:
                    yield batch
                if not self._has_run:
                    job.strategy.sync_idle(job.prepared)
            if is_last:
                break
        self._has_synced = True
        if not self._is_sized:
            self.rounds = self.index + 1

    def _before_backward(self) -> None:
        self._has_run = True
        if self._ends:  # before that, ranks may have something else to say
            self._begin_agreement()

    def _add_nothing(self) -> None:
        """The block of the micro-batch does it."""
