"""Signals that tell a run to end: noted while it trains, and acted upon between two optimizer steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from drivetrain.cluster.read_cluster import LAUNCHER_PID

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PREEMPTED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
# A terminal sends Ctrl-C to a whole process group, and a launcher passes its own on to ranks in it: that is still one.
AGAIN_S = 0.5
OF_LAUNCHER_S = 2.5  # one that sees a second Ctrl-C kills its ranks: they have not to be quick
# Schedulers repeat themselves, and a run that has been saved must not die of it on its way out.
LINGER_S = 30.0
LINGER_INTERRUPT_S = 2.0


class PreemptedExit(SystemExit):
    """A run was told to end by a signal, has saved its state and has ended. Uncaught, it is exit code 75.

    Attributes:
        signal_name: What it was told, on whichever rank: `"SIGTERM"`.
        checkpoint: Where the state is; empty if none had to be saved.
    """

    __module__ = "drivetrain"

    def __init__(self, signal_name: str, checkpoint: str = "") -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.signal_name = signal_name
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        return f"{self.signal_name}: " + (f"saved {self.checkpoint}" if self.checkpoint else "nothing was saved")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal_name, self.checkpoint)


class InterruptedExit(PreemptedExit, KeyboardInterrupt):
    """Likewise after Ctrl-C: `except KeyboardInterrupt` catches it."""

    __module__ = "drivetrain"


class StopSignals:
    """Notes SIGTERM, SIGINT and SIGUSR1 for a block of the main thread; nothing happens in the handlers themselves.

    A handler of the user's own runs too, after it was noted. What is ignored stays ignored, and a handler that C code
    has set (`faulthandler.register`) is left alone. A second Ctrl-C is Python's own again: `KeyboardInterrupt` at once.
    A rank that was launched takes a second one that comes soon for that of its launcher.
    After the block the handlers are those that were found. Only what would kill a process that was told to end, here or
    on another rank, is still swallowed for half a minute. Outside the main thread nothing is done.

    Attributes:
        received: The first signal that came.
        has_ended: The run ends for a signal, to this process or another.
        is_listening: Handlers are set.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.is_listening = self.has_ended = False
        self._found: dict[signal.Signals, Any] = {}
        self._closed_s = 0.0
        self._interrupted_s: float | None = None

    def __enter__(self) -> StopSignals:
        self.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return StopSignals().__dict__  # handlers belong to a process

    def is_noted(self) -> bool:
        """This process was told to end."""
        return self.received is not None

    def listen(self) -> None:
        """Set the handlers, if this is the main thread and they are not set."""
        if self.is_listening or threading.current_thread() is not threading.main_thread():
            return
        found = {sig: _handler_of(sig) for sig in STOP_SIGNALS}
        self.is_listening, self.has_ended, self.received, self._interrupted_s = True, False, None, None
        # None is a handler that C code has set, and that Python could not put back.
        self._found = {sig: old for sig, old in found.items() if old not in (None, signal.SIG_IGN)}
        for sig in self._found:
            signal.signal(sig, self._note)

    def close(self) -> None:
        """Put the handlers back."""
        if not self.is_listening:
            return
        self.is_listening, self._closed_s = False, time.monotonic()
        is_told = self.has_ended or self.is_noted()
        for sig, old in self._found.items():
            # Ctrl-C of one's own works again at once; that of another rank may still be on its way.
            would_end = old == signal.SIG_DFL if sig != signal.SIGINT else self._is_interrupt_due(old)
            signal.signal(sig, self._swallow if is_told and would_end else old)

    def _is_interrupt_due(self, found: Any) -> bool:
        is_one_due = self._interrupted_s is None or LAUNCHER_PID in os.environ
        return self.has_ended and is_one_due and found in (signal.SIG_DFL, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        sig, now = signal.Signals(number), time.monotonic()
        if self.received is None:
            self.received = sig
        found = self._found[sig]
        if callable(found) and found is not signal.default_int_handler:
            found(number, frame)
        elif sig == signal.SIGINT and self._interrupted_s is not None and now - self._interrupted_s > _again_s():
            raise KeyboardInterrupt
        elif sig == signal.SIGINT and self._interrupted_s is None:
            self._interrupted_s = now

    def _swallow(self, number: int, _: FrameType | None) -> None:
        linger_s = LINGER_S if number != signal.SIGINT else LINGER_INTERRUPT_S
        if time.monotonic() - self._closed_s > linger_s:
            signal.signal(number, self._found[signal.Signals(number)])
            signal.raise_signal(number)


def _again_s() -> float:
    """After how long a Ctrl-C is not the first one, on another way."""
    return OF_LAUNCHER_S if LAUNCHER_PID in os.environ else AGAIN_S


def _handler_of(sig: signal.Signals) -> Any:
    """The handler of a signal; `None` for one that C code has set. Of a run that has ended: what it found."""
    old = signal.getsignal(sig)
    former = getattr(old, "__self__", None)
    if isinstance(former, StopSignals) and not former.is_listening:
        return former._found[sig]
    return None if old == signal.SIG_DFL and is_caught_elsewhere(sig) else old


def is_caught_elsewhere(sig: signal.Signals) -> bool:
    """C code handles a signal behind Python's back; only Linux tells."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (sig - 1) & 1)
