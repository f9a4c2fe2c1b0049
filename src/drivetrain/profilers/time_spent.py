"""Where the time of a training goes, from a few of its windows."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from drivetrain.profilers.profiler import Profiler

# In the order in which a window has them; then what is between windows.
PARTS = (
    "loader start", "data", "transfer", "forward", "backward", "sync", "optimizer", "callbacks", "loggers", "loop",
    "validation", "checkpoint",
)  # fmt: skip
_RARE = frozenset({"loggers", "validation", "checkpoint"})


class TimeSpent(Profiler):
    """Divides the time of a training among its parts; they add up to all of it.

    What is rare (validation, checkpoints, rows of loggers, the start of a loader) is measured whenever it happens. Of
    the windows a few are: what is left of the time is divided among the parts as it was divided in those. What is
    nested in another part does not count for that one. Times are the host's: nothing waits for a device.

    Args:
        clock: Seconds, also of later trainings of the same trainer.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self._measured: defaultdict[str, float] = defaultdict(float)
        self._sampled: defaultdict[str, float] = defaultdict(float)
        self._is_sample = False
        self._running: list[str] = []
        self._mark_s = 0.0
        self._begun_s: float | None = None
        self._total_s = 0.0

    def run(self) -> None:
        """The loop begins."""
        self._begun_s = self.clock()

    def end(self) -> None:
        """The loop has ended; what an exception has left open is forgotten."""
        self._running.clear()
        if self._begun_s is not None:
            self._total_s += self.clock() - self._begun_s
            self._begun_s = None

    def sample(self, is_sample: bool) -> None:
        """What follows is a window that stands for others, or none."""
        self._is_sample = is_sample

    def start(self, action_name: str) -> None:
        """See `Profiler.start`."""
        if self._begun_s is None:
            return
        now = self.clock()
        if self._running:
            self._add(self._running[-1], now - self._mark_s)
        self._running.append(action_name)
        self._mark_s = now

    def stop(self, action_name: str) -> None:
        """See `Profiler.stop`."""
        if self._begun_s is None:
            return
        now = self.clock()
        name = self._running.pop()
        assert name == action_name, f"{action_name} ends, but {name} began last"
        self._add(name, now - self._mark_s)
        self._mark_s = now

    def _add(self, action_name: str, seconds: float) -> None:
        part = action_name.partition("/")[0]
        (self._sampled if self._is_sample and part not in _RARE else self._measured)[part] += seconds

    @property
    def total_s(self) -> float:
        """All of the time, until now."""
        return self._total_s + (self.clock() - self._begun_s if self._begun_s is not None else 0.0)

    @property
    def seconds(self) -> dict[str, float]:
        """Part to its seconds, those that have none left out."""
        parts = defaultdict(float, self._measured)
        rest, sampled = max(0.0, self.total_s - sum(parts.values())), sum(self._sampled.values())
        for name, seconds in self._sampled.items():
            parts[name] += rest * seconds / sampled
        if not sampled:
            parts["loop"] += rest
        known = [*PARTS, *(name for name in parts if name not in PARTS)]
        return {name: parts[name] for name in known if parts[name] > 0}

    def summary(self) -> str:
        """A table of the parts."""
        total = max(self.total_s, 1e-9)
        lines = [f"  {name:<13}{one:>10.2f} s {100 * one / total:>5.1f} %" for name, one in self.seconds.items()]
        return "\n".join([f"Training took {total:.2f} s:", *lines])
