"""The demos, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def run_demo(folder: Path, *arguments: str) -> str:
    """Run `drivetrain demo` in a directory; returns what it printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", "demo", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_two_ranks_reach_the_weights_of_one_process(tmp_path: Path) -> None:
    """The demo would show another result on more ranks."""
    options = ("digits", "--epochs", "3", "--float64", "--out", "runs", "--save-weights")
    shown = run_demo(tmp_path, *options, "two.pt", "--devices", "2", "--accumulate", "4")
    run_demo(tmp_path, *options, "one.pt", "--devices", "1", "--accumulate", "8")
    two, one = (torch.load(tmp_path / name, weights_only=True) for name in ("two.pt", "one.pt"))
    assert max((two[name] - value).abs().max().item() for name, value in one.items()) < 1e-10
    assert shown.count("test accuracy") == 1, "every rank reported"
    assert (tmp_path / "runs/version_0/curves.png").stat().st_size > 10_000
    assert (tmp_path / "runs/version_0/metrics.csv").read_text().count("\n") > 5


def test_an_unknown_demo_and_no_command_say_what_there_is(tmp_path: Path) -> None:
    """A user would get a traceback for a typing error."""
    for arguments in (["demo", "digit"], []):
        done = subprocess.run(
            [sys.executable, "-m", "drivetrain", *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "usage: drivetrain" in done.stderr
        assert "Traceback" not in done.stderr
