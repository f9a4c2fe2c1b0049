"""One trial: processes that are started for it, and what is left of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain import Callback
from drivetrain.testing.leaks import find_descendants
from tests.faults.training import Job, as_text, train

ROOT = Path(__file__).resolve().parents[2]
LEFT_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        exit_code: Of the process that launched it; negative for a signal.
        console: What it and its ranks have written.
    """

    exit_code: int
    console: str


def adopt_orphans() -> None:
    """What processes of this one leave behind becomes its own child, to be found by `left_over`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(job: Job, callbacks: Sequence[Callback] = (), *, timeout_s: float = 120.0) -> End:
    """Run a job to its end, in a fork of this process, or as a script where `job.start` says so (without callbacks).

    Raises:
        AssertionError: It did not end, or something that it has started lives on.
    """
    directory = Path(job.directory)
    directory.mkdir(parents=True, exist_ok=True)
    console = directory / f"console_{len(list(directory.glob('console_*')))}.txt"
    with open(console, "wb") as file:
        if job.start == "script":
            pid = _start_script(job, file.fileno())
        else:
            pid = fork(lambda: train(job, callbacks), file.fileno())
    exit_code = wait_for(pid, timeout_s)
    left = left_over()
    text = console.read_text(encoding="utf-8", errors="replace")
    assert exit_code is not None, f"did not end within {timeout_s} s:\n{text[-3000:]}"
    assert not left, f"left behind (I5): {left}\n{text[-3000:]}"
    return End(exit_code, text)


def _start_script(job: Job, console: int) -> int:
    path = Path(job.directory) / "job.json"
    path.write_text(as_text(job), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "faults" / "training.py"), str(path)]
    process = subprocess.Popen(command, stdout=console, stderr=console, env=environment, start_new_session=True)
    process.returncode = 0  # reaped by `wait_for`
    return process.pid


def fork(function: Callable[[], Any], console: int) -> int:
    """Call a function in a new process that has imported all that this one has. Its own session, its own console."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        os.setsid()
        os.dup2(console, 1)
        os.dup2(console, 2)
        function()
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def wait_for(pid: int, timeout_s: float) -> int | None:
    """The exit code of a child; `None` if it had to be killed for taking too long."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for one in [*find_descendants(pid), pid]:
        _kill(one)
    os.waitpid(pid, 0)
    return None


def left_over() -> list[str]:
    """Living and defunct processes that are still there after a while; they are killed."""
    end = time.monotonic() + LEFT_S
    while (pids := find_descendants(os.getpid())) and time.monotonic() < end:
        _reap()
        time.sleep(0.02)
    found = [f"{pid} {_command_of(pid)}" for pid in pids]
    for pid in pids:
        _kill(pid)
    _reap()
    return found


def _reap() -> None:
    """Orphans whose new parent this process is end here. A launcher that lives has to reap its own."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def reference_of(job: Job, root: Path) -> Path:
    """The directory of an uninterrupted run of a job; made once for each kind of job."""
    kind = f"{job.devices}-{job.max_steps}-{job.is_random}-{job.save_every}-{job.seed}-{sorted(job.window.items())}"
    directory = root / "reference" / "".join(letter if letter.isalnum() else "_" for letter in kind)
    if not (directory / "done").exists():
        end = run(replace(job, directory=str(directory), faults=(), max_restarts=0, resume=None, start="fork"))
        assert end.exit_code == 0, end.console
        (directory / "done").touch()
    return directory
