"""Which functions take the time of an action."""

from __future__ import annotations

import cProfile
import io
import pstats
from pathlib import Path

from drivetrain.profilers.profiler import Profiler


class AdvancedProfiler(Profiler):
    """A profile of Python's calls for each action, what is nested in it left out. It slows Python down severalfold.

    Args:
        dirpath: Where the files go; by default to the directory of the first logger.
        filename: The file of the summary, without its ending; without a name it is printed.
        line_count_restriction: Functions that are shown of each action: a number (`int`), or a part of all (`float`).
        dump_stats: Write also a `.prof` file for each action, for `pstats` or a viewer.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        line_count_restriction: int | float = 15,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        self.line_count_restriction = line_count_restriction
        self.dump_stats = dump_stats
        self._profiles: dict[str, cProfile.Profile] = {}
        self._running: list[str] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_profiles": {}, "_running": []}

    def start(self, action_name: str) -> None:
        """See `Profiler.start`; of two profiles of Python's only one may run."""
        if self._running:
            self._profiles[self._running[-1]].disable()
        self._running.append(action_name)
        self._profiles.setdefault(action_name, cProfile.Profile()).enable()

    def stop(self, action_name: str) -> None:
        """See `Profiler.stop`."""
        name = self._running.pop()
        self._profiles[name].disable()
        assert name == action_name, f"{action_name} ends, but {name} began last"
        if self._running:
            self._profiles[self._running[-1]].enable()

    def end(self) -> None:
        """See `Profiler.end`; what an exception has left open is ended."""
        if self._running:
            self._profiles[self._running[-1]].disable()
            self._running.clear()
        if self.dump_stats:
            for name, profile in self._profiles.items():
                profile.dump_stats(self.path(f"-{name.replace('/', '.').replace(' ', '_')}.prof"))

    def summary(self) -> str:
        """For each action the functions that took most."""
        parts = []
        for name, profile in self._profiles.items():
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(self.line_count_restriction)
            parts.append(f"Profile of {name}\n{text.getvalue().strip()}")
        return "\n\n".join(parts)
