"""Programs that tests write to a folder and start as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from drivetrain.testing.leaks import find_descendants

SRC = Path(__file__).parents[2] / "src"

# Two ranks that meet; what a test adds runs in each of them with `rank`, `dist` and `torch` at hand.
SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.launch.launch_script import launch_script

if __name__ == "__main__":
    if not current_cluster().is_launched:
        launch_script(2)
        print("the launcher went on")
    rank = current_cluster().rank
    dist.init_process_group("gloo")
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    assert total.item() == 3
{body}
    dist.barrier()
    dist.destroy_process_group()
"""


def write_script(directory: Path, body: str = "", *, name: str = "train.py") -> Path:
    """A script that launches itself with two ranks."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(body="\n".join(f"    {line}" for line in body.strip().splitlines())))
    return path


def start(*command: str | Path, cwd: Path, stdin: str | None = None) -> subprocess.Popen[str]:
    """Start Python with warnings as errors and drivetrain importable."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, command)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if stdin is not None:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
    return process


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def run(*command: str | Path, cwd: Path, stdin: str | None = None) -> tuple[int, str, str]:
    """Start and finish."""
    return finish(start(*command, cwd=cwd, stdin=stdin))


def wait_for(path: Path, *, count: int = 2, timeout_s: float = 60) -> list[Path]:
    """Wait until a number of files match a pattern."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = sorted(path.parent.glob(path.name))
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear {count} times")


def living(pids: list[int]) -> list[int]:
    """Those of some processes that live; a defunct one does not."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def all_gone(pids: list[int], *, within_s: float) -> list[int]:
    """Wait for processes to be gone; those that are not."""
    deadline = time.monotonic() + within_s
    while (left := living(pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def descendants(process: subprocess.Popen[str]) -> list[int]:
    """Everything that a process has started."""
    return find_descendants(process.pid)
