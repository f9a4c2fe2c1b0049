"""R-06: a checkpoint is damaged after it was written."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.damaged import DAMAGES, check_damage, opened, save
from tests.faults.rows import Row


def trial(seed: int, directory: Path) -> None:
    """A flipped bit, a cut tail, a lost file, a swapped file, in turn."""
    damage, draw = DAMAGES[seed % len(DAMAGES)], random.Random(seed)
    for step in (1, 2, 3):
        save(directory / "good", step)
    with opened() as parts:
        check_damage(directory / "good", directory / "trial", damage, draw, parts)


ROW = Row("R-06", "a flipped bit, a cut tail, a lost file, a swapped file", trial, trials=256, smoke=0)
