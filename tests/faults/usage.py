"""What processes of a long run use, looked at now and then: does it grow?"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from statistics import median

MEASURES = ("MB of memory", "descriptors", "threads", "shared mappings")
MEMORY = Path("/dev/shm")
NUM_LOOKS = 20
_FEWEST = 4


def usage_of(pid: int) -> tuple[float, ...] | None:
    """A number for each of `MEASURES` (RSS in MB); `None` if there is no such process."""
    place = Path(f"/proc/{pid}")
    try:
        lines = (line.split(":", 1) for line in (place / "status").read_text().splitlines())
        status = {name: value.split()[0] for name, value in lines if value.split()}
        shared = sum(str(MEMORY) in line for line in (place / "maps").read_text().splitlines())
        return int(status["VmRSS"]) / 1024, len(os.listdir(place / "fd")), int(status["Threads"]), shared
    except (OSError, KeyError):  # defunct, or gone
        return None


class UsageLog:
    """Processes of one kind, of which many live one after the other: each early in its life, and later.

    What a process needs for a moment, such as the thread and the files of a save, is no growth: of several looks the
    least counts.

    Args:
        early_s: How old a process is when it is looked at first.
        late_s: From which age on it is looked at again; the last looks count.
    """

    def __init__(self, early_s: float, late_s: float) -> None:
        self.early_s, self.late_s = early_s, late_s
        self._since: dict[int, float] = {}
        self._early: dict[int, list[tuple[float, ...]]] = {}
        self._late: dict[int, deque[tuple[float, ...]]] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Look at those that are old enough."""
        for pid in pids:
            age_s = time.monotonic() - self._since.setdefault(pid, time.monotonic())
            early = self._early.setdefault(pid, [])
            late = self._late.setdefault(pid, deque(maxlen=NUM_LOOKS))
            if age_s < self.early_s or (age_s < self.late_s and len(early) == NUM_LOOKS):
                continue
            usage = usage_of(pid)
            if usage is not None:
                (late if age_s >= self.late_s else early).append(usage)

    def growth_among(self) -> dict[str, float]:
        """How much more a late process uses than an early one of the same age: quarters of all, by their medians."""
        seen = [_least(looks) for looks in self._early.values() if looks]
        quarter = len(seen) // 4
        if quarter < _FEWEST:
            return {}
        return _growth([median(column) for column in zip(*seen[:quarter], strict=True)],
                       [median(column) for column in zip(*seen[-quarter:], strict=True)])  # fmt: skip

    def growth_within(self) -> dict[str, float]:
        """How much more a process uses later in its life: the most that any did, of those that lived so long."""
        pairs = [(self._early[pid], late) for pid, late in self._late.items() if len(late) == NUM_LOOKS]
        found = [_growth(_least(early), _least(late)) for early, late in pairs if early]
        return {name: max(one[name] for one in found) for name in MEASURES} if found else {}


def _least(looks: Iterable[tuple[float, ...]]) -> list[float]:
    return [min(column) for column in zip(*looks, strict=True)]


def _growth(before: Iterable[float], after: Iterable[float]) -> dict[str, float]:
    pairs = zip(MEASURES, before, after, strict=True)
    return {name: (new - old) / max(old, 1.0) for name, old, new in pairs}


def unused_memory_files() -> set[str]:
    """Names in the memory file system that no process has open or mapped: left behind by somebody."""
    names = set(os.listdir(MEMORY)) if MEMORY.is_dir() else set()
    used = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            used |= {Path(line.split(maxsplit=5)[5]).name for line in (place / "maps").read_text().splitlines()
                     if f" {MEMORY}/" in line}  # fmt: skip
            used |= {Path(os.readlink(link)).name for link in (place / "fd").iterdir()}
        except OSError:
            continue
    return {name for name in names - used if (MEMORY / name).is_file()}
