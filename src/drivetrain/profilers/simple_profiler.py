"""How long actions take."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from drivetrain.profilers.profiler import Profiler


class SimpleProfiler(Profiler):
    """Adds up how long each action takes, what is nested in it included.

    Args:
        dirpath: Where the file goes; by default to the directory of the first logger.
        filename: The file of the summary, without its ending; without a name it is printed.
        extended: Show also the mean, the number of calls and the part of the whole.
        clock: Seconds.

    Attributes:
        seconds: Name to the time of all calls.
        num_calls: Name to their number.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        extended: bool = True,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(dirpath, filename)
        self.extended = extended
        self.seconds: dict[str, float] = {}
        self.num_calls: dict[str, int] = {}
        self._clock = clock
        self._running: list[tuple[str, float]] = []
        self._begun_s = 0.0
        self._total_s = 0.0

    def begin(self, directory: str | Path, *, rank: int, num_ranks: int) -> None:
        """See `Profiler.begin`."""
        super().begin(directory, rank=rank, num_ranks=num_ranks)
        self._begun_s = self._clock()

    def end(self) -> None:
        """See `Profiler.end`; what an exception has left open is forgotten."""
        self._total_s += self._clock() - self._begun_s
        self._running.clear()

    def start(self, action_name: str) -> None:
        """See `Profiler.start`."""
        self._running.append((action_name, self._clock()))

    def stop(self, action_name: str) -> None:
        """See `Profiler.stop`."""
        name, start = self._running.pop()
        assert name == action_name, f"{action_name} ends, but {name} began last"
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - start
        self.num_calls[name] = self.num_calls.get(name, 0) + 1

    def summary(self) -> str:
        """A table, the longest first."""
        rows = [("action", "total (s)", *(("mean (s)", "calls", "%") if self.extended else ()))]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            calls = self.num_calls[name]
            more = (f"{seconds / calls:.6f}", str(calls), f"{100 * seconds / max(self._total_s, 1e-9):.1f}")
            rows.append((name, f"{seconds:.3f}", *(more if self.extended else ())))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = []
        for name, *cells in rows:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *right]))
        return "\n".join([f"Profile of {self._total_s:.3f} s", *lines])
