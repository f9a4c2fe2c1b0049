"""Makes trials, each in a fork of this process, which has imported torch.

python -m tests.faults.trials DIRECTORY MODULE:FUNCTION:SEED ...

Each prints one line that ends with `held` or `failed`, and of one that failed everything that it said.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.small_run import BOUND_FACTOR, fork, wait_for_end

ROOT = Path(__file__).resolve().parents[2]
TRIAL_S = 100.0


def said_by(names: Sequence[str], directory: Path) -> str:
    """What trials print, all made in one new process."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.faults.trials", str(directory), *names],
        cwd=ROOT,
        env={**os.environ, BOUND_FACTOR: "4", "PYTHONPATH": f"{ROOT / 'src'}"},  # tests run where others run, too
        capture_output=True,
        text=True,
        timeout=TRIAL_S * len(names),
        check=False,
    )
    return result.stdout + result.stderr


def make_trial(name: str, root: Path) -> bool:
    """One trial; whether everything held."""
    module, function, seed = name.split(":")
    trial = getattr(importlib.import_module(f"tests.faults.{module}"), function)
    directory = root / name.replace(":", "_")
    directory.mkdir(parents=True)
    began = time.monotonic()
    said = root / f"{directory.name}.txt"
    pid = fork(lambda: trial(int(seed), directory), said)
    try:
        has_held = wait_for_end(pid, timeout_s=TRIAL_S) == 0
    except AssertionError:
        has_held = False
    text = said.read_text(errors="replace")
    about = text if not has_held else text.splitlines()[0]
    print(f"{about}\n{name} {time.monotonic() - began:.1f} s {'held' if has_held else 'failed'}", flush=True)
    return has_held


def main(directory: str, *names: str) -> int:
    """All of them; the exit code."""
    import torch
    import torch._dynamo  # the first optimizer of a process imports it

    import drivetrain.launch.run_ranks
    import drivetrain.trainer.trainer  # noqa: F401

    torch.set_num_threads(1)
    return 0 if all([make_trial(name, Path(directory)) for name in names]) else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
