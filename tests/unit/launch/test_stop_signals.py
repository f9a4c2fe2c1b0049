"""Signals that tell a run to end."""

from __future__ import annotations

import faulthandler
import pickle
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from drivetrain.cluster.read_cluster import LAUNCHER_PID
from drivetrain.launch import stop_signals
from drivetrain.launch.stop_signals import STOP_SIGNALS, InterruptedExit, PreemptedExit, StopSignals


@pytest.fixture(autouse=True)
def handlers_as_found() -> Iterator[None]:
    """The process of the tests goes on."""
    found = {sig: signal.getsignal(sig) for sig in STOP_SIGNALS}
    yield
    for sig, old in found.items():
        signal.signal(sig, old)


@pytest.mark.parametrize("sig", STOP_SIGNALS)
def test_a_signal_is_noted_and_nothing_else_happens(sig: signal.Signals) -> None:
    """A run would end in the middle of a step, or a collective begin in a handler."""
    with StopSignals() as signals:
        assert not signals.is_noted()
        signal.raise_signal(sig)
        signal.raise_signal(sig)
        assert signals.is_noted() and signals.received == sig


def test_handlers_are_as_found_afterwards() -> None:
    """Ctrl-C would be lost after a run."""
    found = [signal.getsignal(sig) for sig in STOP_SIGNALS]
    with StopSignals():
        assert not {signal.getsignal(sig) for sig in STOP_SIGNALS} & set(found)
    assert [signal.getsignal(sig) for sig in STOP_SIGNALS] == found
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        signals.has_ended = True
    assert signal.getsignal(signal.SIGINT) == found[STOP_SIGNALS.index(signal.SIGINT)]


def test_a_repeat_does_not_kill_a_run_that_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second SIGTERM of a scheduler would turn a saved run into one that was killed, on its way out."""
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    with StopSignals() as again:
        assert not again.is_noted()
        signal.raise_signal(signal.SIGTERM)
        assert again.is_noted()
    ended: list[int] = []
    signals._found[signal.SIGTERM] = lambda number, _: ended.append(number)  # in place of the end of the process
    monkeypatch.setattr(stop_signals, "LINGER_S", -1.0)
    signals._swallow(signal.SIGTERM, None)
    assert ended == [signal.SIGTERM]


@pytest.mark.parametrize("sig", STOP_SIGNALS)
def test_what_was_sent_to_all_ranks_may_come_after_the_end(sig: signal.Signals) -> None:
    """A rank that has saved with the others would die of the signal that they had first."""
    with StopSignals() as signals:
        signals.has_ended = True
    signal.raise_signal(sig)


def test_a_handler_of_ones_own_runs_too() -> None:
    """A program that has something to do on SIGTERM would not hear of it."""
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert signals.is_noted() and seen == [signal.SIGTERM]


def test_a_second_interrupt_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose step never comes could not be ended from the keyboard; but one Ctrl-C may arrive twice."""
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert signals.is_noted()
        monkeypatch.setattr(stop_signals, "AGAIN_S", -1.0)
        signal.raise_signal(signal.SIGINT)


def test_a_rank_takes_the_interrupt_of_its_launcher_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has saved would die of the same Ctrl-C, which its launcher passes on a second later."""
    monkeypatch.setenv(LAUNCHER_PID, "1")
    monkeypatch.setattr(stop_signals, "AGAIN_S", -1.0)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signals.has_ended = True
    signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(stop_signals, "LINGER_INTERRUPT_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_or_belongs_to_c_code_is_left_alone() -> None:
    """A run in the background would hear the Ctrl-C of another, or lose the stacks that faulthandler shows."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, chain=False)
    try:
        with StopSignals() as signals:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
            signal.raise_signal(signal.SIGTERM)
            assert signals.is_noted()
    finally:
        faulthandler.unregister(signal.SIGUSR1)


def test_a_thread_and_another_process_have_none() -> None:
    """A run in a thread would fail, or a rank believe that it was told what its launcher was told."""
    seen: list[Any] = []
    found = signal.getsignal(signal.SIGTERM)

    def run() -> None:
        with StopSignals() as signals:
            seen.append((signal.getsignal(signal.SIGTERM), signals.is_listening))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(found, False)]
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        copy = pickle.loads(pickle.dumps(signals))
    assert not copy.is_listening and not copy.is_noted()


def test_the_exit_says_what_and_where() -> None:
    """A program could not tell Ctrl-C from a scheduler, or would show a traceback for what is no error."""
    error = pickle.loads(pickle.dumps(InterruptedExit("SIGINT", "runs/preempted-step=3.ckpt")))
    assert isinstance(error, KeyboardInterrupt) and isinstance(error, PreemptedExit) and isinstance(error, SystemExit)
    assert (error.code, error.signal_name, error.checkpoint) == (75, "SIGINT", "runs/preempted-step=3.ckpt")
    assert str(PreemptedExit("SIGTERM")) == "SIGTERM: nothing was saved"
