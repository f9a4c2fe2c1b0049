"""R-16: the process dies that hosts the store through which all others have met."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

from tests.faults.checks import (
    Record,
    check_checkpoints,
    check_equal_to,
    check_repeated,
    check_samples,
    check_went_on,
    first_step_s,
)
from tests.faults.row_lost_node import Machine, free_port, wait_until
from tests.faults.rows import Row
from tests.faults.training import Job, as_text, train
from tests.faults.trial import fork, left_over, reference_of, wait_for

NUM_RANKS = 3
END_S = 15.0
TORCHRUN_SAYS = "RendezvousConnectionError: The connection to the C10d store has failed."


def trial(seed: int, directory: Path) -> None:
    """Rank 0 of three that a scheduler has started, or the agent of torchrun that hosts the rendezvous, in turn."""
    draw = random.Random(seed)
    is_torchrun = seed % 2 == 1
    num_ranks = 2 if is_torchrun else NUM_RANKS
    job = Job(str(directory), devices=0, max_steps=120, resume="auto", pause_s=0.03, is_random=is_torchrun)
    reference = reference_of(replace(job, devices=num_ranks, pause_s=0.0), directory.parent)
    (directory / "job.json").write_text(as_text(job), encoding="utf-8")
    (directory / "slow").touch()
    start = start_machines if is_torchrun else start_ranks
    pids, consoles = start(job)
    wait_until(lambda: (directory / "kept" / "latest").exists(), "a checkpoint")
    time.sleep(draw.random())
    os.kill(pids[0], signal.SIGKILL)
    began = time.monotonic()
    codes = [wait_for(pid, 60.0) for pid in pids]
    took_s = time.monotonic() - began
    print(f"{'torchrun' if is_torchrun else 'ranks'}: {took_s:.1f} s until all had ended")
    left, said = left_over(), [console.read_text(errors="replace") for console in consoles]
    assert not left, f"I5: left behind: {left}"
    assert codes[0] == -signal.SIGKILL and set(codes[1:]) == {1}, f"I6: exit codes {codes}\n{said}"
    assert took_s <= max(END_S, first_step_s()), f"ended {took_s:.1f} s later"
    for text in said[1:]:
        clear = TORCHRUN_SAYS if is_torchrun else "[store-lost]"
        assert text.count(clear) == 1 and clear in "".join(text.splitlines(keepends=True)[-3:]), f"I6: {text}"
    check_checkpoints(directory)
    (directory / "slow").unlink()
    pids, consoles = start(job)
    codes = [wait_for(pid, 60.0) for pid in pids]
    assert set(codes) == {0}, f"{codes} {[console.read_text(errors='replace')[-3000:] for console in consoles]}"
    if is_torchrun:
        check_went_on(directory, reference, save_every=job.save_every)
    else:  # DDP adds up three ranks in another order in the first step after a start
        found = Record.read(directory)
        check_samples(found, Record.read(reference))
        check_equal_to(directory, reference, tolerance=1e-9)
        check_repeated(found, most=job.save_every)
        check_checkpoints(directory)


def start_ranks(job: Job) -> tuple[list[int], list[Path]]:
    """Ranks as a scheduler starts them; the first hosts the store."""
    port, pids, consoles = free_port(), [], []
    for rank in range(NUM_RANKS):

        def in_rank(rank: int = rank) -> None:
            os.environ.update(
                RANK=str(rank), WORLD_SIZE=str(NUM_RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(NUM_RANKS),
                GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
            )  # fmt: skip
            train(job)

        consoles.append(Path(job.directory) / f"console_{rank}.txt")
        with open(consoles[-1], "wb") as console:
            pids.append(fork(in_rank, console.fileno()))
    return pids, consoles


def start_machines(job: Job) -> tuple[list[int], list[Path]]:
    """Two agents of torchrun with a rank each; the first hosts the store."""
    port = free_port()
    machines = [Machine(job, port, is_host=is_host) for is_host in (True, False)]
    for machine in machines:
        machine.process.returncode = 0  # reaped by `wait_for`
    return [machine.process.pid for machine in machines], [machine.console for machine in machines]


ROW = Row("R-16", "the process dies that hosts the rendezvous", trial, trials=10, smoke=0, timeout_s=300)
