"""R-03: a rank is killed at a byte of a checkpoint that it writes."""

from __future__ import annotations

from pathlib import Path

from tests.faults.killed_writes import check_killed_write
from tests.faults.rows import Row


def trial(seed: int, directory: Path) -> None:
    """One file, or shards of two ranks, in turn; a new checkpoint, or one that is saved again."""
    check_killed_write(seed // 2, directory, num_ranks=1 + seed % 2)


ROW = Row("R-03", "kill -9 at a byte of a checkpoint, in one file and in shards", trial, trials=400, smoke=6)
