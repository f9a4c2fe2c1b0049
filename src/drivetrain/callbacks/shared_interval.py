"""Whether an interval of time is over, answered alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable

from drivetrain.comm.collectives import Collectives


class SharedInterval:
    """An interval of time that ends between two optimizer steps. Rank 0's clock counts.

    Several ranks do not talk at each step: rank 0 says after how many steps to ask again, about halfway to the end, and
    no more than have passed already.

    Args:
        length_s: Seconds.
        clock: Seconds.
    """

    def __init__(self, length_s: float, clock: Callable[[], float]) -> None:
        self.length_s = length_s
        self._clock = clock
        self._start_time = 0.0
        self._start_step = 0
        self._next_look = 0

    def start(self, step: int) -> None:
        """Begin at this step."""
        self._start_time = self._clock()
        self._start_step = step
        self._next_look = step + 1

    def is_over(self, step: int, collectives: Collectives) -> bool:
        """Whether the interval is over after this step; if so, the next one begins.

        Ranks: all, after each optimizer step.
        """
        if collectives.world_size == 1:
            is_over = self._clock() - self._start_time >= self.length_s
        elif step < self._next_look:
            return False
        else:
            passed = self._clock() - self._start_time
            num_steps = max(1, step - self._start_step)
            num_left = int((self.length_s - passed) / max(passed / num_steps, 1e-9) / 2)
            wait = max(1, min(num_left, num_steps))
            is_over, wait = collectives.broadcast((passed >= self.length_s, wait))
            self._next_look = step + wait
        if is_over:
            self.start(step)
        return is_over
