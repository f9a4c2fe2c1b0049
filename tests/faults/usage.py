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


def began(pid: int) -> str:
    """When a process began, in ticks of the system; empty if there is none of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


class UsageLog:
    """Processes of one kind, of which many live one after the other: each early in its life, and later.

    What a process needs for a moment, such as the thread and the files of a save, is no growth, nor is what a launcher
    has closed while its ranks start anew: of several looks the lower quartile counts. In hours a number is given to
    several processes: when one began tells them apart.

    Args:
        early_s: How old a process is when it is looked at first.
        late_s: From which age on it is looked at again; the last looks count.
    """

    def __init__(self, early_s: float, late_s: float) -> None:
        self.early_s, self.late_s = early_s, late_s
        self._since: dict[tuple[int, str], float] = {}
        self._early: dict[tuple[int, str], list[tuple[float, ...]]] = {}
        self._late: dict[tuple[int, str], deque[tuple[float, ...]]] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Look at those that are old enough."""
        for pid in pids:
            one = pid, began(pid)
            age_s = time.monotonic() - self._since.setdefault(one, time.monotonic())
            early = self._early.setdefault(one, [])
            late = self._late.setdefault(one, deque(maxlen=NUM_LOOKS))
            if age_s < self.early_s or (age_s < self.late_s and len(early) == NUM_LOOKS):
                continue
            usage = usage_of(pid)
            if usage is not None:
                (late if age_s >= self.late_s else early).append(usage)

    def growth_among(self) -> dict[str, float]:
        """How much more a late process uses than an early one of the same age: quarters of all, by their medians."""
        seen = [_usual(looks) for looks in self._early.values() if looks]
        quarter = len(seen) // 4
        if quarter < _FEWEST:
            return {}
        return _growth([median(column) for column in zip(*seen[:quarter], strict=True)],
                       [median(column) for column in zip(*seen[-quarter:], strict=True)])  # fmt: skip

    def growth_within(self) -> dict[str, float]:
        """How much more a process uses later in its life: the most that any did, of those that lived so long."""
        pairs = [(self._early[one], late) for one, late in self._late.items() if len(late) == NUM_LOOKS]
        found = [_growth(_usual(early), _usual(late)) for early, late in pairs if early]
        return {name: max(one[name] for one in found) for name in MEASURES} if found else {}


def _usual(looks: Iterable[tuple[float, ...]]) -> list[float]:
    return [sorted(column)[len(column) // 4] for column in zip(*looks, strict=True)]


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
