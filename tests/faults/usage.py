"""What processes of a long run use, looked at now and then: does it grow?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

MEASURES = ("MB of memory", "descriptors", "threads", "shared mappings")
MEMORY = Path("/dev/shm")
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
    """Processes of one kind, of which many live one after the other: each at the same ages.

    Args:
        ages_s: A process is looked at when it becomes so old, and again and again from the last age on.
    """

    def __init__(self, *ages_s: float) -> None:
        self.ages_s = ages_s
        self._since: dict[int, float] = {}
        self._seen: dict[int, list[tuple[float, ...]]] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Look at those that are old enough."""
        for pid in pids:
            age_s = time.monotonic() - self._since.setdefault(pid, time.monotonic())
            seen = self._seen.setdefault(pid, [])
            if age_s < self.ages_s[min(len(seen), len(self.ages_s) - 1)]:
                continue
            usage = usage_of(pid)
            if usage is not None:
                del seen[len(self.ages_s) - 1 :]
                seen.append(usage)

    def growth_among(self) -> dict[str, float]:
        """How much more a late process uses than an early one of the same age: quarters of all, by their medians."""
        seen = [of_one[0] for of_one in self._seen.values() if of_one]
        quarter = len(seen) // 4
        if quarter < _FEWEST:
            return {}
        return _growth([median(column) for column in zip(*seen[:quarter], strict=True)],
                       [median(column) for column in zip(*seen[-quarter:], strict=True)])  # fmt: skip

    def growth_within(self) -> dict[str, float]:
        """How much more a process uses later in its life: the most that any did, of those that lived so long."""
        found = [_growth(of_one[0], of_one[-1]) for of_one in self._seen.values() if len(of_one) == len(self.ages_s)]
        return {name: max(one[name] for one in found) for name in MEASURES} if found else {}


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
