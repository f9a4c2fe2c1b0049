"""What every test gets: one thread, ranks that stay up, and a check that nothing is left behind."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: several ranks share few cores

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.counted_graphs import GRAPHS

torch.set_num_threads(1)

GRACE_S = 5.0  # how long what a test has stopped may take to be gone


@pytest.fixture(scope="session")
def ranks() -> Iterator[Any]:
    """Four ranks that stay up for the session; `ranks.run(function, *args, world=2)` runs a function on some.

    The workers are started here, before the first test that uses them looks at what processes there are.
    """
    from drivetrain.testing.rank_runner import RankRunner

    runner = RankRunner(num_ranks=4)
    runner.start()
    yield runner
    runner.close()


def child_processes() -> dict[int, str]:
    """Living children of this process and their command lines.

    Python's own servants (resource tracker, fork server) live as long as the interpreter and do not count.
    """
    children = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            command = status.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone meanwhile
            continue
        if int(parent) == os.getpid() and state != "Z" and "resource_tracker" not in command:
            children[int(status.parent.name)] = command
    return {pid: command for pid, command in children.items() if "multiprocessing.forkserver" not in command}


def lasting_threads() -> dict[int, str]:
    """Threads that would keep the interpreter from ending."""
    return {thread.ident or 0: thread.name for thread in threading.enumerate() if not thread.daemon}


def environment() -> dict[str, str]:
    # torch sets the second one when the first optimizer of a process is made.
    ignored = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    return {name: value for name, value in os.environ.items() if name not in ignored}


def has_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def new_after_grace(look: Callable[[], dict[int, str]], before: dict[int, str]) -> dict[int, str]:
    """What is there now and was not before, once it had time to go."""
    end = time.monotonic() + GRACE_S
    while True:
        new = {key: name for key, name in look().items() if key not in before}
        if not new or time.monotonic() > end:
            return new
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a thread, an environment variable or a process group behind.

    The workers of `ranks` are not its own: they may also have been replaced after a failure, so a test that uses them
    is not asked for processes.
    """
    uses_ranks = "ranks" in request.fixturenames
    if uses_ranks:
        request.getfixturevalue("ranks")
    processes, threads, variables = child_processes(), lasting_threads(), environment()
    had_group = has_process_group()
    yield
    left = []
    if has_process_group() and not had_group:
        sys.modules["torch.distributed"].destroy_process_group()
        left.append("the default process group")
    if environment() != variables:
        left.append(f"environment variables {sorted(set(environment().items()) ^ set(variables.items()))}")
        os.environ.update(variables)
        for name in set(environment()) - set(variables):
            del os.environ[name]
    left += [f"thread {name}" for name in new_after_grace(lasting_threads, threads).values()]
    if not uses_ranks:
        left += [f"process {pid}: {name}" for pid, name in new_after_grace(child_processes, processes).items()]
    if left:
        pytest.fail("left behind: " + "; ".join(left))


@pytest.fixture
def fresh_graphs() -> Iterator[None]:
    """Nothing is compiled yet, and `tests.counted_graphs` has counted nothing."""
    GRAPHS.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
