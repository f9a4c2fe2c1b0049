"""An eye on ranks that have not ended: which of them has stalled?"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from drivetrain.launch.patience import Patience
from drivetrain.launch.processes import Usage
from drivetrain.launch.stall import RankView, Stall, find_stalls, waiting_for

LOOK_S = 0.25
_LONGEST_LOOK_S = 2.0
_MEASURE_S = 1.0
_BUSY_SHARE = 0.02  # of one core: a process that sleeps uses a hundredth of it
_BUSY_BYTES_PER_S = 256_000


@dataclass(frozen=True)
class Sight:
    """What can be seen of a rank at one moment.

    Attributes:
        report: What it last said of itself; `None` if nothing yet.
        is_stopped: Its process is stopped.
        usage: Gives what its processes have used up to now; `None` if that is not known.
        beat: Grows as long as the rank gives a sign of life; `None` where its process can be looked at.
    """

    report: dict[str, Any] | None
    is_stopped: bool
    usage: Callable[[], Usage | None]
    beat: int | None = None


class RankWatch:
    """Looks at ranks a few times a second, and says which of them have stalled.

    Its clock stands still while this process itself is stopped.

    Args:
        patience: For how long what is allowed, until ranks say otherwise.
        see: Looks at one rank.
        look_s: Between two looks.
        clock: Seconds.
    """

    def __init__(
        self,
        patience: Patience,
        see: Callable[[int], Sight],
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._see = see
        self._look_s = look_s
        self._clock = clock
        self._now_s = 0.0
        self._looked_s = clock()
        self._views: dict[int, RankView] = {}
        self._beats: dict[int, int] = {}
        self._usages: dict[int, tuple[float, Usage]] = {}

    def look(self, ranks: Collection[int]) -> list[Stall]:
        """Which of some ranks have stalled; between two looks: none.

        Args:
            ranks: Those that have not ended.
        """
        elapsed_s = self._clock() - self._looked_s
        if elapsed_s < self._look_s:
            return []
        self._looked_s += elapsed_s
        self._now_s += min(elapsed_s, _LONGEST_LOOK_S)
        sights = {rank: self._see(rank) for rank in ranks}
        for rank, sight in sights.items():
            self._note(rank, sight)
        views = [self._views[rank] for rank in ranks]
        for view in views:
            if self._now_s - view.moved_s >= _MEASURE_S and waiting_for(view, views):
                self._measure(view, sights[view.rank])
        return find_stalls(views, self._patience, self._now_s)

    def _note(self, rank: int, sight: Sight) -> None:
        view = self._views.setdefault(rank, RankView(rank, moved_s=self._now_s))
        if sight.report is not None:
            view.update(sight.report["counts"], sight.report["pulse"], self._now_s)
            view.is_held = sight.report["is_held"]
            self._patience = Patience(*sight.report["patience"])
        if sight.beat is None or sight.beat != self._beats.get(rank):
            view.heard_s = self._now_s
            self._beats[rank] = sight.beat or 0
        if not sight.is_stopped:
            view.stopped_s = None
        elif view.stopped_s is None:
            view.stopped_s = self._now_s

    def _measure(self, view: RankView, sight: Sight) -> None:
        """Whether a rank that others wait for uses processor or disk, over the last second or so."""
        before_s, before = self._usages.get(view.rank, (-_MEASURE_S, None))
        elapsed_s = self._now_s - before_s
        if elapsed_s < _MEASURE_S:
            return
        usage = sight.usage()
        if usage is None:  # nothing is known: it may well compute
            view.computed_s = self._now_s
            return
        self._usages[view.rank] = (self._now_s, usage)
        if before is None or elapsed_s > 3 * _MEASURE_S or usage.is_active or _is_busy(before, usage, elapsed_s):
            view.computed_s = self._now_s


def _is_busy(before: Usage, usage: Usage, elapsed_s: float) -> bool:
    return (
        abs(usage.processor_s - before.processor_s) > _BUSY_SHARE * elapsed_s
        or abs(usage.io_bytes - before.io_bytes) > _BUSY_BYTES_PER_S * elapsed_s
    )
