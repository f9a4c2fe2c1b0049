"""Runs Python programs one after the other, each in a fork of a process that has imported torch already.

Reads requests from stdin, one JSON object a line: `path`, `arguments`, `directory`, `log`, `timeout_s`. Answers each
with one: `exit_code`, `is_late`. A program sees itself as `__main__` with its own `sys.argv`, as if it ran alone.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from typing import Any


def run_program(request: dict[str, Any]) -> None:
    """Become the program; only its end comes back."""
    os.setsid()
    with open(request["log"], "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(request["directory"])
    sys.argv = [request["path"], *request["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[0] = os.path.dirname(request["path"])
    runpy.run_path(request["path"], run_name="__main__")


def wait_for(pid: int, timeout_s: float) -> tuple[int, bool]:
    """The exit code of a child, and whether it had to be killed for taking too long."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), True


def serve() -> dict[str, Any] | None:
    """Answer requests until stdin ends. In a fork: the request that it has to run."""
    while line := sys.stdin.buffer.readline():
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return request
        exit_code, is_late = wait_for(pid, request["timeout_s"])
        print(json.dumps({"exit_code": exit_code, "is_late": is_late}), flush=True)
    return None


if __name__ == "__main__":
    import numpy  # noqa: F401
    import torch  # noqa: F401

    mine = serve()
    if mine is not None:
        run_program(mine)
