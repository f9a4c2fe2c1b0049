"""Leaving an evaluation after the same batch on all ranks, without a message for each batch."""

from __future__ import annotations

import time
from collections.abc import Callable

from drivetrain.comm.collectives import Collectives

INTERVAL_S = 0.5


class AgreedEnd:
    """Ranks ask each other about twice a second whether any was told to end, after batches that they have agreed on.

    Each message says how long a batch takes, from which all ranks work out the batch of the next one. A rank whose
    batches have run out goes on answering until the last one is through. On one rank nothing is sent.

    Args:
        collectives: Of the run.
        wants_end: This rank was told to end.
        clock: Seconds.

    Attributes:
        is_agreed: The evaluation is to be left.
    """

    def __init__(
        self, collectives: Collectives, wants_end: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_agreed = False
        self._collectives = collectives
        self._wants_end = wants_end
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """The batches of a loader follow."""
        self._next, self._num_batches, self._last_s = 0, 1, self._clock()

    def leaves_after(self, number: int) -> bool:
        """Whether to leave after a batch.

        Ranks: all (a small message after some of the batches).
        """
        if self._collectives.world_size == 1:
            self.is_agreed = self._wants_end()
        elif number >= self._next:
            self._ask(is_through=False)
        return self.is_agreed

    def wait_for_others(self) -> None:
        """This rank has no more batches of the loader.

        Ranks: all.
        """
        if self._collectives.world_size == 1:
            return
        while not self.is_agreed and self._ask(is_through=True):
            pass

    def _ask(self, *, is_through: bool) -> float:
        """Send the message; how many ranks still have batches."""
        now = self._clock()
        seconds = 0.0 if is_through else (now - self._last_s) / self._num_batches
        own = [float(self._wants_end()), float(not is_through), seconds]
        num_ending, num_busy, seconds = self._collectives.agree(own)
        self.is_agreed = num_ending > 0
        fitting = INTERVAL_S * max(num_busy, 1.0) / seconds if seconds > 0 else 1.0
        self._num_batches = max(1, int(min(fitting, 2 * self._num_batches)))  # the first batches may be slow
        self._next += self._num_batches
        self._last_s = self._clock()
        return num_busy
