"""R-08: the network between two machines is cut while both live; each is a network namespace of its own here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.checks import (
    Record,
    check_checkpoints,
    check_digests,
    check_ends,
    check_samples,
    check_went_on,
    first_step_s,
)
from tests.faults.row_lost_node import free_port
from tests.faults.rows import Row
from tests.faults.training import Job, train
from tests.faults.trial import fork, left_over, reference_of, wait_for

TIMEOUT_S = 4.0
CUT_S = 3.0
ADDRESSES = ("10.231.7.1", "10.231.7.2")
_CLONE_NEWNET = 0x40000000


def trial(seed: int, directory: Path) -> None:
    """A job over both machines, or in one of five trials a job of one machine that the cut does not stop."""
    draw = random.Random(seed)
    (cut_one_off if seed % 5 == 4 else cut_in_two)(seed, directory, draw)


def cut_one_off(seed: int, directory: Path, draw: random.Random) -> None:
    """A run on the machine that is cut off goes on, and is started again on the other: both see the same folder."""
    devices = 1 + draw.randrange(2)
    job = Job(
        str(directory), devices=devices, is_random=False, max_steps=120, resume="auto", pause_s=0.05,
        max_restarts=3 if devices > 1 else 0,
    )  # fmt: skip
    reference = reference_of(replace(job, pause_s=0.0), directory.parent)
    (directory / "slow").touch()
    delay_s = draw.random()
    print(f"a run of {devices} ranks is cut off {delay_s:.3f} s after its first checkpoint, and another goes on")
    with two_machines() as (names, set_link):
        pids = [start_rank(lambda: train(job), names[0], directory / "console_0.txt")]
        while not (directory / "kept" / "latest").exists():
            time.sleep(0.01)
        time.sleep(delay_s)
        set_link(0, "down")
        pids.append(start_rank(lambda: train(job), names[1], directory / "console_1.txt"))
        codes = [wait_for(pid, 60.0) for pid in pids]
    said = (directory / "console_0.txt").read_text(errors="replace")
    assert codes == [1, 0] and "[checkpoint-superseded]" in said and "(restart" not in said, (
        f"I6: exit codes {codes}\n{said[-3000:]}"
    )
    assert not left_over(), "I5: left behind"
    found, expected = Record.read(directory), Record.read(reference)
    check_digests(found, expected)
    check_ends(found, expected)
    check_samples(found, expected)
    check_checkpoints(directory)
    # Which had the last word: the name that the second gave it is that of its last step.
    assert (directory / "kept" / "latest").read_text() == f"step={job.max_steps}.ckpt\n"
    begin = next(line for line in reversed(found.of("begin")))
    others = [line for line in found.of("step") if line["run"] != begin["run"]]
    late = {line["step"] for line in others if line["time"] > begin["time"]}
    assert len(late) <= job.save_every + 1, f"the first made {len(late)} steps after the second had begun"


def cut_in_two(seed: int, directory: Path, draw: random.Random) -> None:
    """Cut for a while that the process group waits for, or for ever; then the job is started again on both."""
    job = Job(str(directory), devices=0, max_steps=120, resume="auto", pause_s=0.02, timeout_s=TIMEOUT_S)
    reference = reference_of(replace(job, devices=2, pause_s=0.0, timeout_s=None), directory.parent)
    (directory / "slow").touch()
    is_for_ever, delay_s, side = seed % 2 == 1, draw.random(), draw.randrange(2)
    print(f"cut {'for ever' if is_for_ever else f'for {CUT_S} s'}, {delay_s:.3f} s after the start")
    with two_machines() as (names, set_link):
        pids = start(job, names)
        while not (directory / "kept" / "latest").exists():
            time.sleep(0.01)
        time.sleep(delay_s)
        set_link(side, "down")
        began = time.monotonic()
        if not is_for_ever:
            time.sleep(CUT_S)
            set_link(side, "up")
        codes = [wait_for(pid, 60.0) for pid in pids]
        took_s = time.monotonic() - began
        assert not left_over(), "I5: left behind"
        if is_for_ever:
            assert all(code not in (0, None) for code in codes), f"I6: exit codes {codes}"
            assert took_s < TIMEOUT_S + 2.0 + first_step_s() / 2, f"ended {took_s:.1f} s after the cut"
            set_link(side, "up")
        if codes != [0, 0]:
            check_checkpoints(directory)
            (directory / "slow").unlink()
            codes = [wait_for(pid, 60.0) for pid in start(job, names)]
        assert codes == [0, 0], (directory / "console_0.txt").read_text(errors="replace")[-3000:]
    check_went_on(directory, reference, save_every=job.save_every)


def start(job: Job, names: tuple[str, str]) -> list[int]:
    """One rank in each of two namespaces, as a launcher on two machines would."""
    port = free_port()
    pids = []
    for rank, name in enumerate(names):

        def in_rank(rank: int = rank) -> None:
            os.environ.update(
                RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank),
                MASTER_ADDR=ADDRESSES[0], MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="eth",
            )  # fmt: skip
            train(job)

        pids.append(start_rank(in_rank, name, Path(job.directory) / f"console_{rank}.txt"))
    return pids


def start_rank(function: Callable[[], None], name: str, console: Path) -> int:
    """Call a function in a process of one namespace; its process id."""

    def in_namespace() -> None:
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        function()

    with open(console, "ab") as file:
        return fork(in_namespace, file.fileno())


@contextmanager
def two_machines() -> Iterator[tuple[tuple[str, str], Callable[[int, str], None]]]:
    """Two network namespaces with a cable between them; their names, and what takes one end of it down or up."""
    names = (f"faults-{os.getpid()}-a", f"faults-{os.getpid()}-b")
    ends = (f"fa{os.getpid()}", f"fb{os.getpid()}")

    def set_link(side: int, state: str) -> None:
        ip("-n", names[side], "link", "set", "eth", state)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "link", "set", end, "name", "eth")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth", "up")
        yield names, set_link
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


ROW = Row("R-08", "the network between two ranks is cut, for 3 s or for ever", trial, trials=30, smoke=0)
