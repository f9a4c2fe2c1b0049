"""A few trials of each row of faults; `make faults` makes them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.rows import Row, all_rows

ROOT = Path(__file__).resolve().parents[2]
SMOKE_S = 900  # a machine may be shared; alone it takes about three minutes
FIRST_STEP_S = "40"  # all bounds of time are four times as long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SMOKE_S + 30)]


@pytest.fixture(scope="module")
def said() -> str:
    """What the smoke trials of all rows print: one process, so that torch is imported once."""
    command = [sys.executable, "-m", "tests.faults", "--smoke", "--first-step-s", FIRST_STEP_S]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SMOKE_S, check=False
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("row", [row for row in all_rows().values() if row.smoke], ids=lambda row: row.name)
def test_a_run_survives(said: str, row: Row) -> None:
    """A run that failed would end, hang, repeat or leave out samples, or come to other weights."""
    name, number = row.name, row.smoke
    assert f"{name}: {number} of {number};" in said, said
