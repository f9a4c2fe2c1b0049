"""Signals to the launching process, while ranks run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from drivetrain.launch.stop_signals import AGAIN_S, is_caught_elsewhere

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)


class SignalGate:
    """Turns signals into torch's `SignalException`, on which its agent ends the ranks; not while they are started.

    An exception between two starts would leave a rank that nobody knows of. Blocking signals does not help: the kernel
    gives them to any other thread of the process. What is ignored, like SIGHUP under nohup, stays ignored. On leaving,
    the handlers are those that were found. Outside the main thread nothing is done.

    Only the first signal is raised: the ranks have been told, and may be saving. A second Ctrl-C is raised as well.

    Attributes:
        received: The signal that came while nothing could be raised.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._is_held = False
        self._has_raised = False
        self._interrupted_s: float | None = None
        self._found: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalGate:
        if threading.current_thread() is threading.main_thread():
            found = {sig: signal.getsignal(sig) for sig in FORWARDED_SIGNALS}
            # None is a handler that C code has set, and that Python could not put back.
            self._found = {
                sig: old
                for sig, old in found.items()
                if old not in (None, signal.SIG_IGN) and not (old == signal.SIG_DFL and is_caught_elsewhere(sig))
            }
            for sig in self._found:
                signal.signal(sig, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_held = True
        for sig, old in self._found.items():
            signal.signal(sig, old)

    def _receive(self, number: int, _: FrameType | None) -> None:
        sig = signal.Signals(number)
        if self._is_held:
            self.received = self.received or sig
        elif not self._has_raised or (sig == signal.SIGINT and self._is_second_interrupt()):
            self._raise(sig)
        elif sig == signal.SIGINT and self._interrupted_s is None:
            self._interrupted_s = time.monotonic()

    def _is_second_interrupt(self) -> bool:
        return self._interrupted_s is not None and time.monotonic() - self._interrupted_s > AGAIN_S

    def _raise(self, sig: signal.Signals) -> None:
        self._has_raised = True
        if sig == signal.SIGINT:
            self._interrupted_s = time.monotonic()
        raise _signal_exception(sig)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what comes until the end of the block, and raise it then."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        received, self.received = self.received, None
        if received is not None:
            self._raise(received)


def _signal_exception(received: signal.Signals) -> Exception:
    # Imported here: only who launches pays for torch's elastic agent.
    from torch.distributed.elastic.multiprocessing import SignalException

    return SignalException(f"{received.name} received", sigval=received)
