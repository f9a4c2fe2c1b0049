"""What every thread of every rank does, as text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from drivetrain.launch.processes import is_stopped
from drivetrain.launch.worker import DUMP_SIGNAL, STACKS_NAME

STOPPED = "Its process is stopped, and cannot show its stack."
SILENT = "It did not answer."
_HEART = "launch/heart.py"  # the thread that reports
_LIMIT_S = 1.5
_SETTLES_S = 0.15
_POLL_S = 0.05


def read_stacks(pids: Mapping[int, int], directory_of: Callable[[int], Path]) -> dict[int, str]:
    """Ask ranks of this machine for their stacks; one whose C code does not let go of Python's lock answers, too.

    Args:
        pids: Of the ranks that have not ended, by rank.
        directory_of: Where a rank leaves its files.
    """
    stacks, asked = {}, {}
    for rank, pid in pids.items():
        path = directory_of(rank) / STACKS_NAME
        if is_stopped(pid):
            stacks[rank] = STOPPED
        elif path.exists():
            asked[rank] = path
            _ask(pid)
        else:
            stacks[rank] = "It has not begun to run Python."
    deadline_s, sizes, settled_s = time.monotonic() + _LIMIT_S, [-1], 0.0
    while asked and settled_s < _SETTLES_S and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        found = [path.stat().st_size for path in asked.values()]
        settled_s = settled_s + _POLL_S if found == sizes and all(found) else 0.0
        sizes = found
    for rank, path in asked.items():
        stacks[rank] = tidy(path.read_text(encoding="utf-8", errors="replace"))
    return stacks


def _ask(pid: int) -> None:
    try:
        os.kill(pid, DUMP_SIGNAL)
    except ProcessLookupError:
        return


def tidy(text: str) -> str:
    """What faulthandler has written, without the thread that reports."""
    parts = [part for part in text.strip().split("\n\n") if part and _HEART not in part]
    return "\n\n".join(parts) or SILENT


def stacks_text(stacks: Mapping[int, str], stalled: Collection[int]) -> str:
    """The stacks of all ranks, those that have stalled last."""
    order = sorted(stacks, key=lambda rank: (rank in stalled, rank))
    parts = [f"Rank {rank}{' (stalled)' if rank in stalled else ''}:\n{stacks[rank]}" for rank in order]
    return "Stacks of all ranks, the innermost call of each thread first\n" + "\n\n".join(parts)
