"""R-21: a run of hours that saves every two seconds, beside training, and to which something is done all the time.

What it is compared with takes half as long once more. It can also run meanwhile: `python -m tests.faults.row_soak DIR`
first, then `python -m tests.faults R-21 --reference DIR`, which ends it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from drivetrain import PREEMPTED_EXIT_CODE
from tests.faults.checks import (
    Record,
    check_checkpoints,
    check_digests,
    check_ends,
    check_repeated,
    check_samples,
    first_step_s,
)
from tests.faults.fault import PLACES, Fault, ask
from tests.faults.rows import Row
from tests.faults.training import Job, train
from tests.faults.trial import fork, left_over, run, wait_for
from tests.faults.usage import MEASURES, MEMORY, UsageLog, unused_memory_files, usage_of

SOAK_NAME = "FAULTS_SOAK_S"
REFERENCE_NAME = "FAULTS_SOAK_REFERENCE"
MEAN_GAP_S = 40.0
SAVE_S = 2.0
PAUSE_S = 0.025
HEARTBEAT_S = 5.0
MOST_GROWTH = 0.05
SAY_S = 30.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Of 13 faults, 10 leave the launcher alive, so that it grows old.
KINDS = (
    *["kill"] * 3, *["kill while it saves"] * 3, "stop", *["raise"] * 2, "exit", "told to end", "told to end",
    "kill the launcher",
)  # fmt: skip


class Follower:
    """Reads what ranks note, as they do: the attempt that runs, its processes, its newest step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.attempt: tuple[str, int] = ("", 0)
        self.pids: dict[int, int] = {}
        self.step = 0
        self.num_steps = 0
        self._places: Counter[Path] = Counter()

    def look(self) -> None:
        """Read on."""
        for path in sorted(self.directory.glob("notes_*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._places[path])
                lines = file.read().rpartition(b"\n")[0]
            self._places[path] += len(lines) + bool(lines)
            for text in lines.splitlines():
                if b'"kind": "begin"' in text or b'"kind": "step"' in text:
                    self._take(json.loads(text))

    def _take(self, line: dict[str, object]) -> None:
        attempt = (str(line["run"]), int(str(line["attempt"])))
        if line["kind"] == "begin":
            if attempt != self.attempt:
                self.attempt, self.pids, self.num_steps = attempt, {}, 0
            self.pids[int(str(line["rank"]))] = int(str(line["pid"]))
        elif attempt == self.attempt:
            self.step, self.num_steps = int(str(line["step"])), self.num_steps + 1


class Soak:
    """The run, what is done to it, and what was seen of it.

    Args:
        job: What runs.
        draw: Decides what happens, and when.
    """

    def __init__(self, job: Job, draw: random.Random) -> None:
        self.job, self.draw = job, draw
        self.directory = Path(job.directory)
        self.follower = Follower(self.directory)
        self.faults: Counter[str] = Counter()
        self.longest_wait_s = 0.0
        self.num_torn = 0
        self.launchers, self.ranks = UsageLog(30.0, 90.0), UsageLog(8.0, 40.0)
        self.began = self._said = time.monotonic()
        self.launch()

    def launch(self) -> None:
        """Start the run, or start it again."""
        with open(self.directory / "console.txt", "ab") as console:
            self.pid = fork(lambda: train(self.job), console.fileno())

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Look at everything, four times a second, until something is so."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.follower.look()
            if is_so():
                return
            assert time.monotonic() < deadline, f"I4: not within {timeout_s:.0f} s: {what}\n{self.console()}"
            assert not os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), f"ended\n{self.console()}"
            self.launchers.look([self.pid])
            self.ranks.look(self.follower.pids.values())
            if time.monotonic() - self._said > SAY_S:
                self._said = time.monotonic()
                print(self, flush=True)
            time.sleep(0.25)

    def wait_for_steps(self, timeout_s: float, *, after: tuple[str, int]) -> None:
        """Wait until another attempt than that one makes steps."""
        began = time.monotonic()
        self.wait_until(lambda: self.follower.attempt != after and self.follower.num_steps > 0, timeout_s, "a new step")
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began)

    def do(self, kind: str) -> None:
        """One fault, and the run goes on."""
        self.faults[kind] += 1
        rank, before = self.draw.randrange(2), self.follower.attempt
        pid, bound_s = self.follower.pids[rank], first_step_s()
        if kind == "kill while it saves":
            kept = self.directory / "kept"
            deadline = time.monotonic() + 2 * SAVE_S
            while not is_saving(kept) and time.monotonic() < deadline:
                time.sleep(0.0005)
        if kind in ("kill", "kill while it saves"):
            os.kill(pid, signal.SIGKILL)
            self.num_torn += is_saving(self.directory / "kept")
        elif kind == "stop":
            os.kill(pid, signal.SIGSTOP)
            bound_s += HEARTBEAT_S
        elif kind in ("raise", "exit"):
            ask(self.directory, Fault(kind, rank, 0, self.draw.choice(PLACES)))
        elif kind == "told to end":
            os.kill(self.draw.choice([pid, self.pid]), self.draw.choice(STOP_SIGNALS))
            self.end_with(PREEMPTED_EXIT_CODE)
        else:
            os.kill(self.pid, signal.SIGKILL)
            self.end_with(-signal.SIGKILL)
        if kind in ("told to end", "kill the launcher"):
            self.launch()
        self.wait_for_steps(bound_s, after=before)

    def end_with(self, exit_code: int) -> None:
        """The launcher ends so, nothing is left, and what has a name can be trusted."""
        found = wait_for(self.pid, 2 * first_step_s())
        left = left_over()
        assert found == exit_code, f"I6: exit code {found} instead of {exit_code}\n{self.console()}"
        assert not left, f"I5: left behind: {left}\n{self.console()}"
        check_checkpoints(self.directory)

    def console(self) -> str:
        """The end of what was written."""
        return (self.directory / "console.txt").read_text(encoding="utf-8", errors="replace")[-3000:]

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.faults.items()))
        return (
            f"{time.monotonic() - self.began:.0f} s: step {self.follower.step}, {self.faults.total()} faults "
            f"({kinds or 'none'}; {self.num_torn} in a save), at most {self.longest_wait_s:.1f} s to the next step; "
            f"launcher {told([self.pid])}; ranks {told(self.follower.pids.values())}"
        )


def trial(seed: int, directory: Path) -> None:
    """Something is done about every 40 s; then the run is asked to end, and all of it is compared."""
    draw = random.Random(seed)
    soak_s = float(os.environ.get(SOAK_NAME, "7200"))
    scratch = directory / "scratch"
    scratch.mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    had_files = unused_memory_files()
    (directory / "slow").touch()
    job = Job(
        str(directory), max_steps=10**9, resume="auto", max_restarts=1_000_000, save_every_s=SAVE_S, pause_s=PAUSE_S
    )
    soak = Soak(job, draw)
    soak.wait_for_steps(60.0, after=("", 0))
    while (left_s := soak_s - (time.monotonic() - soak.began)) > 0:
        gap_s = min(left_s, draw.expovariate(1 / MEAN_GAP_S))
        until = time.monotonic() + gap_s
        soak.wait_until(lambda until=until: time.monotonic() >= until, gap_s + 60.0, "nothing")  # type: ignore[misc]
        if gap_s < left_s:
            soak.do(draw.choice(KINDS))
    # Where a fault came last, steps have still to be made again: it ends beyond all that any attempt has made.
    furthest = max(line["step"] for line in Record.read(directory).of("step"))
    soak.wait_until(lambda: soak.follower.step > furthest, 120.0, "a step beyond those of all attempts")
    ask(directory, Fault("stop", draw.randrange(2), 0))
    soak.end_with(0)
    print(soak, flush=True)
    check(soak, directory, had_files)


def check(soak: Soak, directory: Path, had_files: set[str]) -> None:
    """All that has to hold, said in numbers."""
    found = Record.read(directory)
    last = max(line["step"] for line in found.of("end"))
    began = time.monotonic()
    beside = os.environ.get(REFERENCE_NAME)
    if beside:
        expected = meanwhile(Path(beside), last)
    else:
        job = replace(uninterrupted(directory / "reference"), max_steps=last)
        end = run(job, timeout_s=4 * 3600)
        assert end.exit_code == 0, end.console
        print(f"the same {last} steps without a fault took {time.monotonic() - began:.0f} s", flush=True)
        expected = Record.read(directory / "reference")
        check_ends(found, expected)
    check_digests(found, expected)
    check_samples(found, expected)
    # A save is due every 2 s, and is written meanwhile: the one before it may be the newest that is whole.
    check_repeated(found, most=int((2 * SAVE_S + 2.0) / PAUSE_S))
    check_checkpoints(directory)
    starts, faults = len(found.attempts()), soak.faults.total()
    made = len(found.of("step")) // 2
    print(f"{starts} attempts made {made} steps for {last}; all digests, samples and checkpoints are right", flush=True)
    assert starts == faults + 1, f"{starts} attempts, but {faults} faults"
    check_growth(soak)
    left = unused_memory_files() - had_files
    scratch = os.listdir(directory / "scratch")
    print(f"left in {MEMORY}: {sorted(left) or 'nothing'}; in the folder of temporary files: {len(scratch)} folders")
    assert not left, "left behind in memory"
    assert len(scratch) <= soak.faults["kill the launcher"], f"left behind: {scratch}"


def uninterrupted(directory: Path) -> Job:
    """The same run, to which nothing is done."""
    return Job(str(directory), max_steps=10**9, save_every_s=1e6)


def meanwhile(directory: Path, last: int) -> Record:
    """What the run in a directory has noted of that many steps, once it has made them; then it ends."""
    deadline, follower = time.monotonic() + 4 * 3600, Follower(directory)
    while follower.step <= last + 1:
        assert time.monotonic() < deadline, f"the reference is at step {follower.step}, not yet at {last}"
        follower.look()
        time.sleep(1.0)
    ask(directory, Fault("stop", 0, 0))
    return Record.read(directory).up_to(last)


def check_growth(soak: Soak) -> None:
    """What processes use is flat: of ranks and launchers by their age, and of late ones against early ones."""
    grown = {
        "a launcher from 30 s of age on": soak.launchers.growth_within(),
        "late launchers against early ones": soak.launchers.growth_among(),
        "a rank from 8 s of age on": soak.ranks.growth_within(),
        "late ranks against early ones": soak.ranks.growth_among(),
    }
    for what, growth in grown.items():
        said = ", ".join(f"{name} {100 * share:+.1f} %" for name, share in growth.items())
        print(f"{what}: {said or 'too few'}", flush=True)
    most = {what: max(growth.values()) for what, growth in grown.items() if growth}
    assert all(share < MOST_GROWTH for share in most.values()), f"grown: {grown}"


def is_saving(kept: Path) -> bool:
    """There is a checkpoint without a name yet."""
    return any(name.startswith(".") for name in os.listdir(kept))


def told(pids: Iterable[int]) -> str:
    """What processes use now."""
    usages = [usage for pid in pids if (usage := usage_of(pid)) is not None]
    return " and ".join(
        ", ".join(f"{number:.0f} {name}" for name, number in zip(MEASURES, usage, strict=True)) for usage in usages
    )


ROW = Row(
    "R-21", "a run of two hours with a fault every 40 s and a save every 2 s", trial, trials=1, smoke=0,
    timeout_s=6 * 3600, is_shown=True,
)  # fmt: skip

if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    (place / "slow").touch()
    torch.set_num_threads(1)
    train(replace(uninterrupted(place), pause_s=PAUSE_S / 2))
