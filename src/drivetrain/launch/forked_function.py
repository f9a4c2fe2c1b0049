"""A function that runs in forks of this process, one for each rank."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from drivetrain.base.errors import LaunchError
from drivetrain.cluster.read_cluster import LAUNCHER_PID
from drivetrain.launch import worker
from drivetrain.launch.signal_gate import FORWARDED_SIGNALS, SignalGate


class ForkedFunction:
    """What a forked rank runs: the function, once all ranks are forked.

    A rank that went ahead would connect to the store in the launcher, whose thread then looks its address up. A fork at
    that moment inherits a lock of the C library that is held for good (glibc's of resolv.conf), and waits for it at its
    own first look-up.

    Args:
        function: Called in each rank.
        args: Its arguments.
        kwargs: Its arguments by name.

    Raises:
        LaunchError: `fork-after-cuda`.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _check_may_fork()
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)  # torch asks for it
        self._function, self._args, self._kwargs = function, args, kwargs
        self._launcher_pid = os.getpid()
        self._handlers = {sig: signal.getsignal(sig) for sig in FORWARDED_SIGNALS}
        self._gate: tuple[int, int] | None = None

    @contextmanager
    def held_back(self, num_ranks: int) -> Iterator[None]:
        """Ranks that are forked in this block begin at its end."""
        self._gate = read_end, write_end = os.pipe()
        try:
            yield
        finally:
            os.write(write_end, b"\0" * num_ranks)  # its end alone would not do: other ranks have it open, too
            os.close(read_end)
            os.close(write_end)
            self._gate = None

    def __call__(self) -> None:
        """Run as a rank."""
        inherited = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        for sig, handler in self._handlers.items():
            signal.signal(sig, handler if handler is not None else signal.SIG_DFL)
        if isinstance(inherited, SignalGate) and inherited.received is not None:
            signal.raise_signal(inherited.received)  # it came to this process while the launcher's handlers were set
        os.environ[LAUNCHER_PID] = str(self._launcher_pid)
        worker.end_with_launcher(self._launcher_pid)
        worker.show_stacks_on_signal()
        torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork, and waiting for them never ends
        self._wait_for_others()
        exit_code = worker.report(functools.partial(worker.call, self._function, self._args, self._kwargs))
        if exit_code:
            raise SystemExit(exit_code)  # multiprocessing ends the process, without the launcher's exit functions
        worker.mark_finished()

    def _wait_for_others(self) -> None:
        if self._gate is not None:
            os.read(self._gate[0], 1)
            for descriptor in self._gate:
                os.close(descriptor)


def _check_may_fork() -> None:
    if torch.cuda.is_initialized():
        raise LaunchError(
            "CUDA has been used in this process, and a forked rank could not use it again.",
            code="fork-after-cuda",
            do='Start with "spawn"; or restart the notebook and launch before anything touches a GPU: .cuda(), '
            ".to('cuda'), torch.cuda.*.",
        )
