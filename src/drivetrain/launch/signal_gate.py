"""Signals to the launching process, while ranks run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class SignalGate:
    """Turns signals into torch's `SignalException`, on which its agent ends the ranks; not while they are started.

    An exception between two starts would leave a rank that nobody knows of. Blocking signals does not help: the kernel
    gives them to any other thread of the process. What is ignored, like SIGHUP under nohup, stays ignored. On leaving,
    the handlers are those that were found. Outside the main thread nothing is done.

    Attributes:
        received: The signal that came while nothing could be raised.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._is_held = False
        self._found: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalGate:
        if threading.current_thread() is threading.main_thread():
            found = {sig: signal.getsignal(sig) for sig in FORWARDED_SIGNALS}
            # None is a handler that C code has set, and that Python could not put back.
            self._found = {sig: old for sig, old in found.items() if old not in (None, signal.SIG_IGN)}
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
        else:
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
            raise _signal_exception(received)


def _signal_exception(received: signal.Signals) -> Exception:
    # Imported here: only who launches pays for torch's elastic agent.
    from torch.distributed.elastic.multiprocessing import SignalException

    return SignalException(f"{received.name} received", sigval=received)
