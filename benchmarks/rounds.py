"""Interleaved rounds: in each round every peer is measured once, in a process of its own.

What the machine does besides then hits all peers alike, and each round gives a ratio of its own. Rounds begin with
another peer each time, so that no peer always runs first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Reading = Mapping[str, Any]


def child_environment() -> dict[str, str]:
    """The environment of a measurement: this checkout is importable, and each process has one thread."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def run_child(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Reading:
    """Run one measurement, with further variables of the environment, and read the JSON line that it prints.

    Raises:
        RuntimeError: It failed, or said nothing.
    """
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**child_environment(), **(environment or {})}, timeout=timeout_s,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {timeout_s:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"exit status {done.returncode}, no reading:\n{done.stderr[-2000:]}")
    reading: Reading = json.loads(lines[-1])
    return reading


def measure_rounds(
    names: Sequence[str],
    command: Callable[[str], Sequence[str]],
    *,
    num_rounds: int,
    show: Callable[[Reading], str],
    timeout_s: float = 600,
) -> dict[str, list[Reading | None]]:
    """Measure each name once in each round; `None` where it failed.

    Args:
        names: In the order of the first round.
        command: The command line of one measurement.
        num_rounds: How often each is measured.
        show: A reading in a few words, for the progress on standard error.
        timeout_s: Of one measurement.
    """
    readings: dict[str, list[Reading | None]] = {name: [] for name in names}
    for index in range(num_rounds):
        first = index % len(names)
        for name in [*names[first:], *names[:first]]:
            begin = time.monotonic()
            try:
                reading: Reading | None = run_child(command(name), timeout_s=timeout_s)
                said = show(reading) if reading is not None else ""
            except RuntimeError as error:
                reading, said = None, f"FAILED: {error}"
            readings[name].append(reading)
            say(f"round {index + 1}/{num_rounds}  {name:<22} {said}  ({time.monotonic() - begin:.1f} s)")
    return readings


def say(line: str) -> None:
    """Show progress where it does not get into the table."""
    print(line, file=sys.stderr, flush=True)
