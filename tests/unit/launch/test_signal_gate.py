"""Signals to the launching process."""

from __future__ import annotations

import signal
import threading

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from drivetrain.launch.signal_gate import FORWARDED_SIGNALS, SignalGate


def test_a_signal_is_raised_inside_and_handlers_are_as_found_outside() -> None:
    """Ranks would not hear of a signal, or Ctrl-C would be lost after a run."""
    found = [signal.getsignal(sig) for sig in FORWARDED_SIGNALS]
    with pytest.raises(SignalException) as caught, SignalGate():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.sigval == signal.SIGTERM
    assert [signal.getsignal(sig) for sig in FORWARDED_SIGNALS] == found


def test_a_signal_is_kept_while_it_is_held() -> None:
    """An interrupt between two starts would leave a rank that nobody knows of."""
    steps = []
    with SignalGate() as gate, pytest.raises(SignalException):
        with gate.held():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
        steps.append("went on")
    assert steps == ["started"]


def test_what_is_ignored_stays_ignored() -> None:
    """A run under nohup would end with its terminal."""
    found = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalGate():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, found)


def test_a_thread_leaves_signals_alone() -> None:
    """Launching from a thread would fail: only the main thread may set handlers."""
    seen = []

    def enter() -> None:
        with SignalGate() as gate, gate.held():
            seen.append(signal.getsignal(signal.SIGTERM))

    found = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [found]
