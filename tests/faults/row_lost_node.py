"""R-15: two machines under torchrun; one is lost with all that runs on it, and comes back."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from drivetrain.testing.leaks import find_descendants
from tests.faults.checks import Record, check_checkpoints, check_end, check_equal_to, check_samples, first_step_s
from tests.faults.rows import Row
from tests.faults.training import Job, as_text
from tests.faults.trial import ROOT, End, left_over, reference_of

HEARTBEAT = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,join_timeout=100"
ROUND_S = 100.0


class Machine:
    """One agent of torchrun with one rank, on loopback."""

    def __init__(self, job: Job, port: int, *, is_host: bool) -> None:
        directory = Path(job.directory)
        self.console = directory / f"console_{time.monotonic_ns()}.txt"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=50",
            "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1",
            f"--rdzv-conf=is_host={str(is_host).lower()},{HEARTBEAT}", "--monitor-interval=0.1",
            str(ROOT / "tests" / "faults" / "training.py"), str(directory / "job.json"),
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        with open(self.console, "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)

    def lose(self) -> None:
        """The machine is gone: agent and rank die at once."""
        for pid in [self.process.pid, *find_descendants(self.process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> End:
        """Wait for the proper end."""
        return End(self.process.wait(ROUND_S), self.console.read_text(encoding="utf-8", errors="replace"))


def trial(seed: int, directory: Path) -> None:
    """Lost after some steps of both; the other goes on alone; both together again, to the end."""
    draw = random.Random(seed)
    job = Job(
        str(directory), devices=0, resume="auto", is_random=False, max_steps=120, pause_s=0.1,
        window={"global_batch_size": 24, "micro_batch_size": 4},
    )  # fmt: skip
    reference = reference_of(replace(job, devices=1), directory.parent)
    (directory / "job.json").write_text(as_text(job), encoding="utf-8")
    (directory / "slow").touch()
    port = free_port()
    stays, leaves = Machine(job, port, is_host=True), Machine(job, port, is_host=False)
    try:
        wait_until(lambda: steps_of(directory, [2]) >= draw.randrange(3, 20), "both make steps")
        leaves.lose()
        lost = time.time()
        wait_until(lambda: steps_of(directory, [2, 1]) >= draw.randrange(1, 6), "one goes on alone")
        first = min(line["time"] for line in Record.read(directory).of("step") if line["world"] == 1)
        print(f"{first - lost:.1f} s to the next step")
        leaves = Machine(job, port, is_host=False)
        wait_until(lambda: steps_of(directory, [2, 1, 2]) >= 1, "both go on together")
        (directory / "slow").unlink()
        for machine in (stays, leaves):
            check_end(machine.finish(), exit_code=0, says=["resume='auto': goes on from"] if machine is stays else [])
    except BaseException:
        for machine in (stays, leaves):
            print(machine.console.read_text(encoding="utf-8", errors="replace")[-3000:])
        raise
    finally:
        for machine in (stays, leaves):
            if machine.process.poll() is None:
                machine.lose()
        left = left_over()
    assert not left, f"I5: left behind: {left}"
    check_samples(Record.read(directory), Record.read(reference))
    check_equal_to(directory, reference, tolerance=1e-9)
    check_checkpoints(directory)
    assert first - lost <= first_step_s() + 5, f"I4: {first - lost:.1f} s"


def steps_of(directory: Path, worlds: list[int]) -> int:
    """Steps of the newest attempt, if these were the numbers of ranks until now; else -1."""
    record = Record.read(directory)
    found: list[int] = []
    for line in record.of("begin"):
        if not found or found[-1] != line["world"]:
            found.append(line["world"])
    if found != worlds:
        return -1
    newest = record.attempts()[-1]
    steps = [line["step"] for line in record.of("step") if (line["run"], line["attempt"]) == newest]
    return max(steps) - record.begins()[-1] if steps else 0


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look now and then until something is so."""
    end = time.monotonic() + ROUND_S
    while not is_so():
        assert time.monotonic() < end, f"I4: not within {ROUND_S} s: {what}"
        time.sleep(0.1)


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ROW = Row("R-15", "a machine under torchrun is lost and comes back", trial, trials=20, smoke=1, timeout_s=420)
