"""How ranks ended, and which of them failed first."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drivetrain.base.errors import RankFailedError
from drivetrain.base.fence import SUPERSEDED
from drivetrain.launch.stop_signals import PREEMPTED_EXIT_CODE
from drivetrain.launch.worker import FINISHED_NAME

ERROR_NAME = "error.json"
# The kernel closes the connections of a dying process before its parent can see that it is dead: what the survivors
# raise in between is a consequence.
SILENT_DEATH_LEAD_S = 0.5


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        rank: The rank.
        kind: `"finished"`, `"raised"` an exception, `"exited"` through `sys.exit` with another code than 0, or `"died"`
            without a word: by a signal, by `os._exit`, by an abort; or it `"stalled"` and was killed for it.
        time: When, in seconds since the epoch.
        exit_code: Its exit code; negative for a signal.
        headline: The last line of its traceback; or how it stalled.
        traceback_text: Its traceback; or the stacks of all ranks.
        code: Of an error of drivetrain that it raised.
    """

    rank: int
    kind: Literal["finished", "raised", "exited", "died", "stalled"]
    time: float
    exit_code: int
    headline: str = ""
    traceback_text: str = ""
    code: str = ""

    @property
    def is_failure(self) -> bool:
        """Anything but a proper end."""
        return self.kind != "finished"

    @property
    def has_stalled(self) -> bool:
        """It was killed because it did not move."""
        return self.kind == "stalled"


def read_rank_end(directory: Path, rank: int, *, exit_code: int | None, seen: float) -> RankEnd | None:
    """How a rank ended, from what it left behind and its exit code.

    Args:
        directory: Where the rank leaves its files.
        rank: The rank.
        exit_code: `None` while the process lives.
        seen: The time at which the exit code was seen.

    Returns:
        `None` if the rank is still at work.
    """
    if (directory / FINISHED_NAME).exists():
        return RankEnd(rank, "finished", seen, 0)
    error_file = directory / ERROR_NAME
    if error_file.exists():
        data = json.loads(error_file.read_text(encoding="utf-8"))
        own, message = data["drivetrain"], data["message"]
        return RankEnd(
            rank, own["kind"], own["time"], own["exit_code"], message["message"], message["extraInfo"]["py_callstack"],
            own.get("code", ""),
        )  # fmt: skip
    if exit_code is None:
        return None
    return RankEnd(rank, "died", seen, exit_code)


def first_failure(ends: Iterable[RankEnd]) -> RankEnd:
    """The failure that came first: the cause, where the others are consequences."""
    return min(
        (end for end in ends if end.is_failure),
        key=lambda end: end.time - (SILENT_DEATH_LEAD_S if end.kind == "died" else 0.0),
    )


def agreed_exit_code(ends: Sequence[RankEnd]) -> int | None:
    """The code with which every rank called `sys.exit`, if all of them did and it is the same."""
    codes = {end.exit_code for end in ends}
    return codes.pop() if len(codes) == 1 and all(end.kind == "exited" for end in ends) else None


def is_preemption(ends: Sequence[RankEnd]) -> bool:
    """All of them were told to end and have saved, by their exit code."""
    return agreed_exit_code(ends) == PREEMPTED_EXIT_CODE


def may_start_again(ends: Sequence[RankEnd], *, num_ranks: int) -> bool:
    """Ranks that have failed are started again; those that have all left by the same `sys.exit` meant to leave.

    So do ranks that were told to end and have saved: whoever told them starts them again. And where another process has
    gone on with the run, these would take it back, and the other would do the same.
    """
    if any(end.code == SUPERSEDED for end in ends):
        return False
    return len(ends) < num_ranks or agreed_exit_code(ends) is None


def make_rank_error(ends: Sequence[RankEnd], *, num_ranks: int, num_restarts: int = 0) -> RankFailedError:
    """The error that the launching process raises; its text ends with the traceback of the rank that failed first."""
    first = first_failure(ends)
    consequences = [end.rank for end in ends if end.is_failure and end.rank != first.rank]
    what = f"rank {first.rank} of {num_ranks} {how_it_ended(first)}."
    if consequences:
        names = ", ".join(str(rank) for rank in consequences)
        what += f" Rank{'s' if len(consequences) > 1 else ''} {names} failed after it, or because of it."
    if num_restarts:
        what += f" All had been started again {num_restarts} time{'s' if num_restarts > 1 else ''} before."
    return RankFailedError(
        what,
        failed_rank=first.rank,
        exit_code=first.exit_code,
        traceback_text=first.traceback_text.rstrip(),
        code="rank-stalled" if first.has_stalled else "rank-failed",
    )


def how_it_ended(end: RankEnd, *, is_brief: bool = False) -> str:
    """In words, to follow the rank's number; brief without guesses at the reason."""
    if end.kind == "raised":
        return f"failed: {end.headline}"
    if end.has_stalled:
        return f"has stalled: {end.headline}"
    if end.kind == "exited":
        return f"ended with exit code {end.exit_code}, while other ranks were at work"
    if end.exit_code < 0:
        try:
            name = signal.Signals(-end.exit_code).name
        except ValueError:
            name = f"signal {-end.exit_code}"
        what, hint = f"was killed by {name}", ", without a traceback"
        if end.exit_code == -signal.SIGKILL:
            hint += "; the system may have run out of memory"
    else:
        what = f"left with exit code {end.exit_code} before it had finished"
        hint = " (os._exit?), without a traceback"
    return what if is_brief else what + hint
