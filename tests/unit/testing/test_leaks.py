"""What a test leaves behind is found."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import torch.distributed as dist

from drivetrain.testing.leaks import find_children, leaks, take_state


def test_a_clean_process_leaks_nothing() -> None:
    """Every test would fail."""
    assert leaks(take_state(), wait_s=0) == []


def test_a_child_is_found_unless_it_is_allowed() -> None:
    """A rank that goes on after its test would not be seen."""
    before = take_state()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert [line.split(":")[0] for line in leaks(before, wait_s=0)] == [f"process {child.pid}"]
        assert leaks(before, allowed_pids=[child.pid], wait_s=0) == []
        assert child.pid in find_children(os.getpid())
    finally:
        child.communicate()


def test_threads_sockets_and_variables_are_found() -> None:
    """The next test would find them."""
    before = take_state()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left")
    thread.start()
    os.environ["DRIVETRAIN_LEFT"] = "1"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert sorted(leaks(before, wait_s=0)) == [
                "environment DRIVETRAIN_LEFT: None -> '1'",
                f"socket 127.0.0.1:{server.getsockname()[1]} LISTEN",
                "thread left",
            ]
    finally:
        release.set()
        thread.join()
        del os.environ["DRIVETRAIN_LEFT"]
    assert leaks(before) == []


def test_a_process_group_is_found() -> None:
    """The next run would adopt it, or fail on it."""
    before = take_state()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert "the default process group" in leaks(before, wait_s=0)
    finally:
        dist.destroy_process_group()


def test_an_ipv6_listener_is_read() -> None:
    """A listener on every address of a machine could hide behind its notation."""
    before = take_state()
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        (line,) = leaks(before, wait_s=0)
        assert line == f"socket [0000:0000:0000:0000:0000:0000:0000:0001]:{server.getsockname()[1]} LISTEN"
