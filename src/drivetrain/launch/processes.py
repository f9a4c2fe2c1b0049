"""What the system knows of a process that cannot speak for itself. Linux; elsewhere nothing is known."""

from __future__ import annotations

import multiprocessing.process
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_PROC = Path("/proc")


class Usage(NamedTuple):
    """What processes have used up to now.

    Attributes:
        processor_s: Seconds of all cores.
        io_bytes: Read and written.
        is_active: One of them waits for a disk right now, or for a processor.
    """

    processor_s: float
    io_bytes: int
    is_active: bool


def is_stopped(pid: int) -> bool:
    """A process is stopped by a signal; one that a debugger holds is not meant."""
    return _stat(pid)[:1] == ["T"]


def usage_of(pid: int) -> Usage | None:
    """What a process and all that it has started have used; `None` if that is not known."""
    return _usage([pid, *_descendants(pid)]) if _stat(pid) else None


def own_usage() -> Usage | None:
    """What this process and its children of `multiprocessing` have used. Cheaper: no other process is looked at."""
    children = [child.pid for child in list(multiprocessing.process._children)]  # type: ignore[attr-defined]
    return _usage([os.getpid(), *(pid for pid in children if pid)]) if _stat(os.getpid()) else None


def _usage(pids: Sequence[int]) -> Usage:
    processor_s, io_bytes, is_active = 0.0, 0, False
    for pid in pids:
        if fields := _stat(pid):
            processor_s += sum(int(ticks) for ticks in fields[11:15]) * _TICK_S  # also of children that have ended
            is_active |= fields[0] in "DR"
            io_bytes += _io_bytes(pid)
    return Usage(processor_s, io_bytes, is_active)


def _stat(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _io_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
