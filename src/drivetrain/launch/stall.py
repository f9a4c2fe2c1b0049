"""Which rank has stalled: judged from what each rank has begun, and when it last moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.launch.patience import Patience

_STOPPED_SHARE = 0.75  # the rest of `heartbeat_s` is for looking, and for the stacks
_BUSY_NOW_S = 3.0
_SILENT_BEATS = 6  # C code may hold Python's lock for a while, and only who is on the same machine can tell
JOINING = "join"
"""In place of a group: how often a rank has come to where the ranks meet."""
MESSAGES = "messages"
"""In place of a group: the small messages over memory that ranks of one machine share."""


@dataclass
class RankView:
    """What is seen of one rank.

    Attributes:
        rank: The rank.
        counts: Collectives that it has begun, by process group.
        pulse: Its own signs of progress.
        moved_s: When one of these last changed.
        computed_s: When it was last seen to use processor or disk.
        stopped_s: Since when its process is stopped.
        heard_s: When it last gave a sign of life.
        is_held: Somebody is debugging it.
    """

    rank: int
    counts: dict[str, int] = field(default_factory=dict)
    pulse: int = 0
    moved_s: float = 0.0
    computed_s: float = -math.inf
    stopped_s: float | None = None
    heard_s: float = 0.0
    is_held: bool = False

    def update(self, counts: dict[str, int], pulse: int, now_s: float) -> None:
        """Take over what the rank says of itself."""
        if (counts, pulse) != (self.counts, self.pulse):
            self.counts, self.pulse, self.moved_s = counts, pulse, now_s


@dataclass(frozen=True)
class Stall:
    """A verdict.

    Attributes:
        rank: The rank that has stalled.
        waited_s: For how long.
        reason: What the rank does not do, and who waits for it.
    """

    rank: int
    waited_s: float
    reason: str


def find_stalls(views: Sequence[RankView], patience: Patience, now_s: float) -> list[Stall]:
    """The ranks that have stalled; several only if none of them waits for another, or all of them for each other.

    Args:
        views: Of the ranks that have not ended.
        patience: For how long what is allowed.
        now_s: On the clock of the views.
    """
    stopped = [view for view in views if _stopped_for(view, now_s) >= patience.heartbeat_s * _STOPPED_SHARE]
    if stopped or any(view.is_held for view in views):
        return [_verdict_on_stopped(view, now_s) for view in stopped]
    waited_for = {view.rank: waits for view in views if (waits := waiting_for(view, views))}
    late = [
        view for view in views if view.rank in waited_for and _is_late(view, waited_for[view.rank], patience, now_s)
    ]
    waiting = {waiter.rank for waits in waited_for.values() for waiter, _ in waits}
    guilty = [view for view in late if view.rank not in waiting]
    if guilty or len(late) < len(waited_for):
        return [_verdict(view, waited_for[view.rank], now_s) for view in guilty]
    return _verdict_on_each_other(late, waited_for, now_s)


def waiting_for(view: RankView, views: Sequence[RankView]) -> list[tuple[RankView, str]]:
    """The ranks that have begun a collective that `view` has not come to, and in which group."""
    found = []
    for other in views:
        shared = [name for name in other.counts if name in view.counts or name == JOINING]
        ahead = [name for name in shared if other.counts[name] > view.counts.get(name, 0)]
        if other is not view and ahead:
            found.append((other, ahead[0]))
    return found


def _is_late(view: RankView, waits: list[tuple[RankView, str]], patience: Patience, now_s: float) -> bool:
    if now_s - view.heard_s >= _SILENT_BEATS * patience.heartbeat_s:
        return True
    # Whoever has begun a collective may do something else meanwhile: it waits only while it does not move either.
    since_s = max(view.moved_s, min(waiter.moved_s for waiter, _ in waits))
    idle_s = now_s - max(since_s, view.computed_s)
    return idle_s >= patience.stall_s or now_s - since_s >= patience.busy_s


def _stopped_for(view: RankView, now_s: float) -> float:
    return now_s - view.stopped_s if view.stopped_s is not None else 0.0


def _verdict_on_stopped(view: RankView, now_s: float) -> Stall:
    waited_s = _stopped_for(view, now_s)
    return Stall(view.rank, waited_s, f"its process has been stopped (SIGSTOP) for {waited_s:.1f} s")


def _verdict(view: RankView, waits: list[tuple[RankView, str]], now_s: float) -> Stall:
    waited_s = now_s - max(view.moved_s, min(waiter.moved_s for waiter, _ in waits))
    is_busy = now_s - view.computed_s < _BUSY_NOW_S
    does = "has computed without progress" if is_busy else "has done nothing"
    if view.stopped_s is not None:
        does = "is stopped (SIGSTOP) and has done nothing"
    elif view.heard_s < now_s - _BUSY_NOW_S:
        does = "has given no sign of life"
    return Stall(view.rank, waited_s, f"it {does} for {waited_s:.1f} s, while {_describe(view, waits)}")


def _verdict_on_each_other(
    late: Sequence[RankView], waited_for: dict[int, list[tuple[RankView, str]]], now_s: float
) -> list[Stall]:
    parts = "; ".join(f"{_describe(view, waited_for[view.rank])} on rank {view.rank}" for view in late)
    reason = f"ranks wait for each other in different collectives: {parts}"
    return [Stall(view.rank, now_s - view.moved_s, reason) for view in late]


def _describe(view: RankView, waits: list[tuple[RankView, str]]) -> str:
    waiter, name = waits[0]
    numbers = ", ".join(str(one.rank) for one, _ in waits)
    who = f"rank {numbers} waits" if len(waits) == 1 else f"ranks {numbers} wait"
    if name == JOINING:
        return f"{who} for it to join the process group"
    if name == MESSAGES:
        return f"{who} for its part of a decision"
    place = f"in collective {waiter.counts[name]} of process group {name!r}"
    return f"{who} {place} (rank {view.rank} was last in {view.counts[name]})"
