"""A failure, written down: the cause, and what every other rank had to say."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from drivetrain.base.errors import RankFailedError
from drivetrain.launch.rank_end import RankEnd, first_failure, how_it_ended

FAILURE_FOLDER = "drivetrain_failures"


class FailureFile:
    """The failures of one launch, one after the other if ranks are started again. Made when the first one is written.

    Args:
        folder: Where it is made; `None` writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        self.path = folder.absolute() / name if folder is not None else None

    def add(self, error: RankFailedError, ends: Iterable[RankEnd]) -> None:
        """Write a failure down, and let the error say where. A disk that refuses it must not hide the failure."""
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(failure_text(error, ends))
            error.what += f" All ranks: {self.path}"


def failure_text(error: RankFailedError, ends: Iterable[RankEnd]) -> str:
    """What each rank that failed has to say: consequences first, and the cause at the end."""
    failed = [end for end in ends if end.is_failure]
    first = first_failure(failed)
    parts = [f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error.what}"]
    for end in sorted(failed, key=lambda end: -end.time):
        if end is not first:
            parts.append(_part(end, "CONSEQUENCE, or failed by itself after the cause"))
    parts.append(_part(first, "CAUSE"))
    return "\n\n".join(parts) + "\n\n"


def _part(end: RankEnd, label: str) -> str:
    text = end.traceback_text.rstrip()
    return f"---- {label}: rank {end.rank} {how_it_ended(end)}" + (f"\n{text}" if text else "")
