"""R-09: one rank is stopped, or waits or loops for ever: it is named, and the run ends. A slow one is left alone."""

from __future__ import annotations

from pathlib import Path

from tests.faults import stalls
from tests.faults.rows import Row

NUM_STALLS, NUM_SLOW = len(stalls.STALLS), len(stalls.SLOW)


def trial(seed: int, directory: Path) -> None:
    """Each kind of stall, then each kind of slowness, in turn."""
    turn, kind = divmod(seed, NUM_STALLS + NUM_SLOW)
    if kind < NUM_STALLS:
        stalls.trial(turn * NUM_STALLS + kind, directory)
    else:
        stalls.slow_trial(turn * NUM_SLOW + kind - NUM_STALLS, directory)


ROW = Row(
    "R-09", "a rank stops, hangs or loops for ever; or is only slow", trial, trials=54, smoke=NUM_STALLS + NUM_SLOW
)
