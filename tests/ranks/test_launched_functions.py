"""Functions that run in several ranks, launched from this very process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch

from drivetrain.base.errors import ConfigError, LaunchError, RankFailedError
from drivetrain.launch.launch_function import launch_function

pytestmark = pytest.mark.slow


def test_tensors_and_modules_travel_both_ways() -> None:
    """Model, data and results would have to go through files."""
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)

    def main(module: torch.nn.Module, *, scale: float) -> Any:
        return module(x) * scale, module

    results = launch_function(main, (model,), {"scale": 2.0}, num_ranks=2)
    assert [torch.equal(y, model(x) * 2) for y, _ in results] == [True, True]
    assert torch.equal(results[1][1].weight, model.weight)


def test_a_launch_leaves_the_process_as_it_was() -> None:
    """Ctrl-C, logging or the next launch would behave differently after a run."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    found = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handlers = [signal.getsignal(sig) for sig in signals]
        loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
        logging_state = [(logger.name, logger.level, list(logger.filters)) for logger in loggers]
        env = dict(os.environ)
        launch_function(os.getpid, num_ranks=1)
        assert [signal.getsignal(sig) for sig in signals] == handlers
        assert [(logger.name, logger.level, list(logger.filters)) for logger in loggers] == logging_state
        assert dict(os.environ) == env
    finally:
        signal.signal(signal.SIGHUP, found)


def test_a_signal_that_is_ignored_stays_ignored_during_a_launch() -> None:
    """A run under nohup would end with its terminal."""
    found = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def main() -> int:
            os.kill(os.getppid(), signal.SIGHUP)
            return 1

        assert launch_function(main, num_ranks=1, start="fork") == [1]
    finally:
        signal.signal(signal.SIGHUP, found)


def test_a_thread_can_launch() -> None:
    """A server or an interface could not start a training."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(launch_function(os.getppid, num_ranks=1)))
    thread.start()
    thread.join()
    assert results == [os.getpid()]


def test_ranks_get_a_share_of_the_cores_and_stay_on_loopback() -> None:
    """Ranks would fight for cores, or be seen from the network."""
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "OMP_NUM_THREADS")
    (values,) = launch_function(lambda: [os.environ.get(name) for name in names], num_ranks=1)
    assert values == ["lo", "lo", "lo", "127.0.0.1", os.environ["OMP_NUM_THREADS"]]


def test_a_failed_rank_is_started_again_and_meets_the_others_anew(caplog: pytest.LogCaptureFixture) -> None:
    """A restart would read what the failed ranks wrote, or hide why it happened."""

    def main() -> str:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise ValueError("only once")
        dist.destroy_process_group()
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    assert launch_function(main, num_ranks=2, max_restarts=1, start="fork") == ["1", "1"]
    assert "ValueError: only once" in caplog.text and "started again (restart 1 of 1)" in caplog.text


def test_a_forked_rank_takes_what_cannot_be_pickled_and_computes() -> None:
    """A notebook full of open files could not launch; OpenMP would hang in the copy of a process that used it."""
    lock = threading.Lock()
    large = torch.randn(300, 300)
    assert (large @ large).shape == (300, 300)

    def main() -> tuple[bool, int]:
        with lock:
            return bool((large @ large).isfinite().all()), torch.get_num_threads()

    assert launch_function(main, num_ranks=2, start="fork") == [(True, 1), (True, 1)]


def test_no_forked_rank_runs_before_all_are_forked() -> None:
    """A fork while another rank connects inherits a lock of the C library that the launcher's store holds: it hangs."""
    forked_ns = []
    os.register_at_fork(after_in_parent=lambda: (time.sleep(0.05), forked_ns.append(time.monotonic_ns())))
    began_ns = launch_function(time.monotonic_ns, num_ranks=3, start="fork")
    assert len(forked_ns) == 3
    assert min(began_ns) > max(forked_ns)


def test_a_forked_rank_that_fails_is_reported_like_any_other() -> None:
    """The traceback would be lost, or show our own lines."""

    def main() -> None:
        if os.environ["RANK"] == "1":
            raise KeyError("here")
        threading.Event().wait()

    with pytest.raises(RankFailedError) as caught:
        launch_function(main, num_ranks=2, start="fork")
    assert caught.value.failed_rank == 1
    lines = caught.value.traceback_text.splitlines()
    assert (lines[1].split(",")[0], lines[-1]) == (f'  File "{__file__}"', "KeyError: 'here'")


def test_a_forked_rank_frees_nothing_that_an_earlier_launch_left() -> None:
    """Its garbage collector would come upon the former store, and wait for a thread that has become one of its own."""

    def fail() -> None:
        try:
            launch_function(sys.exit, (7,), num_ranks=1, start="fork")
        except SystemExit as error:
            circle = [error]  # its traceback knows this function, which knows it
            circle.append(circle[0])

    def collect() -> int:
        end = threading.Event()
        for _ in range(4):  # they get the memory of threads that are not here
            threading.Thread(target=end.wait, daemon=True).start()
        found = gc.collect()
        end.set()
        return found

    gc.disable()
    try:
        fail()
        launch_function(collect, num_ranks=1, start="fork")
    finally:
        gc.enable()


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_sys_exit_on_every_rank_comes_back_as_its_code(start: Any) -> None:
    """The exit code that a program chose would become 1."""
    with pytest.raises(SystemExit) as caught:
        launch_function(sys.exit, (7,), num_ranks=2, start=start)
    assert caught.value.code == 7


def test_sys_exit_zero_is_a_proper_end() -> None:
    """A program that ends with `sys.exit(main())` would fail."""
    assert launch_function(sys.exit, (0,), num_ranks=1) == [None]


def test_what_cannot_be_sent_is_named() -> None:
    """A pickling error would come without a word about where, or what to do."""
    with pytest.raises(LaunchError, match="cannot pickle '_thread.lock' object") as caught:
        launch_function(print, (threading.Lock(),), num_ranks=2)
    assert caught.value.code == "not-picklable"


def test_another_way_to_start_is_refused() -> None:
    """A typing error would start ranks in a way that nobody chose."""
    with pytest.raises(ConfigError, match="start='thread'"):
        launch_function(print, num_ranks=2, start="thread")  # type: ignore[arg-type]
