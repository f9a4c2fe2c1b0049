"""The rows of tests: each file `row_*.py` here holds one, as `ROW`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One kind of fault, tried many times.

    Attributes:
        name: `"R-01"`.
        title: What is done to the run.
        trial: `trial(seed, directory)` raises if anything does not hold. It runs in a process of its own, which is the
            parent of all that is left behind; the directory is empty. Next to it lies what trials of the row share.
        trials: How many for the published figure.
        smoke: How many in the ordinary tests.
        timeout_s: Of one trial.
        is_shown: A trial takes so long that what it says is wanted at once.
    """

    name: str
    title: str
    trial: Callable[[int, Path], None]
    trials: int
    smoke: int = 2
    timeout_s: float = 180.0
    is_shown: bool = False


def all_rows() -> dict[str, Row]:
    """Every row by its name, in order."""
    files = sorted(Path(__file__).parent.glob("row_*.py"))
    rows = [importlib.import_module(f"tests.faults.{path.stem}").ROW for path in files]
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}
