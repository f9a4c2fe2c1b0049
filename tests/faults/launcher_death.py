"""R-12: the launcher is killed, in one way or another, and nothing lives on."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from pathlib import Path

from drivetrain.launch.launch_script import DEFAULT_GRACE_S
from drivetrain.testing.leaks import find_descendants
from tests.faults.small_run import (
    Net,
    bound,
    check_nothing_left,
    fork,
    loader,
    note,
    trainer,
    wait_for_end,
)
from tests.faults.trial import adopt_orphans

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LEFT_S = 3.0
END_S = 8.0  # ranks that are told to end finish their step, and save
PROCESSES = 5  # the launcher, two ranks, a data worker of each


def run(directory: Path) -> None:
    """Train without an end."""

    def at(place: str) -> None:
        if place == "forward":
            note(directory / f"trains_{os.environ['RANK']}")

    trainer(directory, max_epochs=-1).fit(Net(at), loader())


def trial(seed: int, directory: Path) -> None:
    """One signal, a random moment: in one of three trials while ranks are started."""
    draw = random.Random(seed)
    sig, is_early, delay_s = SIGNALS[seed % len(SIGNALS)], draw.random() < 1 / 3, draw.random()
    print(f"{sig.name} {delay_s:.3f} s after {'the start' if is_early else 'both ranks train'}", flush=True)
    adopt_orphans()
    pid = fork(functools.partial(run, directory), directory / "console.txt")
    deadline = time.monotonic() + 60
    while not is_early and time.monotonic() < deadline and len(list(directory.glob("trains_*"))) < 2:
        time.sleep(0.01)
    time.sleep(delay_s)
    if not is_early:
        assert len(find_descendants(os.getpid())) >= PROCESSES, (directory / "console.txt").read_text()
    os.kill(pid, sig)
    signalled = time.monotonic()
    exit_code = wait_for_end(pid, timeout_s=min(bound(END_S), DEFAULT_GRACE_S - 5.0))
    check_nothing_left(within_s=max(0.0, LEFT_S - (time.monotonic() - signalled)))
    assert exit_code != 0
