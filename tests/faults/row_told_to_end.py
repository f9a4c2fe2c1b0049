"""R-10: ranks, or their launcher, are told to end; the run that is started again goes on exactly."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

from drivetrain import PREEMPTED_EXIT_CODE
from drivetrain.testing.leaks import find_descendants
from tests.faults.checks import check_checkpoints, check_went_on, first_step_s
from tests.faults.rows import Row
from tests.faults.training import Job, train
from tests.faults.trial import fork, left_over, reference_of, run, wait_for

GRACE_S = 5.0
SKEW_S = 2.0
TARGETS = ("one rank", "the launcher", "all")
SIGNALS = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def trial(seed: int, directory: Path) -> None:
    """One signal to one process, or one to each at moments that lie up to 2 s apart; in one of six while it starts."""
    draw = random.Random(seed)
    job = Job(str(directory), max_steps=120, resume="auto", pause_s=0.02)
    reference = reference_of(replace(job, pause_s=0.0), directory.parent)
    (directory / "slow").touch()
    target, sig = TARGETS[seed % len(TARGETS)], draw.choice(SIGNALS)
    is_early, delay_s = draw.random() < 1 / 6, draw.random()
    console = directory / "console.txt"
    with open(console, "wb") as file:
        pid = fork(lambda: train(job), file.fileno())
    while not is_early and len(list(directory.glob("notes_*"))) < 2:
        time.sleep(0.01)
    time.sleep(delay_s * (0.3 if is_early else 2.0))
    ranks = sorted(find_descendants(pid))
    told = {"one rank": [draw.choice(ranks or [pid])], "the launcher": [pid], "all": [pid, *ranks]}[target]
    print(f"{sig.name} to {target} {'while it starts' if is_early else f'{2 * delay_s:.3f} s after'}")
    began = time.monotonic()
    for one in told:
        with contextlib.suppress(ProcessLookupError):  # it has saved and left already
            os.kill(one, sig)
        time.sleep(draw.random() * SKEW_S / len(told) if len(told) > 1 else 0)
    exit_code = wait_for(pid, 60.0)
    took_s = time.monotonic() - began
    text = console.read_text(errors="replace")
    assert not left_over(), f"I5: left behind\n{text}"
    if not is_early:
        assert exit_code == PREEMPTED_EXIT_CODE, f"I6: exit code {exit_code}\n{text}"
        assert took_s < SKEW_S + max(GRACE_S, first_step_s() / 2), f"ended {took_s:.1f} s later"
        check_checkpoints(directory)
    (directory / "slow").unlink()
    end = run(job)
    assert end.exit_code == 0, end.console
    check_went_on(directory, reference, save_every=job.save_every if is_early else 0)


ROW = Row("R-10", "told to end by a signal: one rank, the launcher or all, up to 2 s apart", trial, trials=60, smoke=2)
