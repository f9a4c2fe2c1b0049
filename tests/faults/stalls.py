"""R-09: a rank that does not move is named, and the run ends; one that moves slowly is left alone."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import drivetrain
from drivetrain import Patience
from drivetrain.checkpoint.verify import list_checkpoints
from tests.faults.small_run import (
    Net,
    bound,
    check_nothing_left,
    fork,
    loader,
    note,
    noted,
    trainer,
    wait_for_end,
)
from tests.faults.trial import adopt_orphans

STALL_S, BUSY_S, HEARTBEAT_S = 2.0, 4.0, 5.0
END_S = 3.0  # for the stacks, and until all have ended
SLOW_S = 3.5


def stop() -> None:
    """As by `kill -STOP`."""
    os.kill(os.getpid(), signal.SIGSTOP)


def deadlock() -> None:
    """A lock that nobody lets go of."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def loop_for_ever() -> None:
    """User code without an end."""
    while True:
        pass


def call_something_else() -> None:
    """A collective that the others do not make."""
    dist.barrier(dist.new_group([0, 1]))


def compute() -> None:
    """Slow, as a compiler is."""
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        torch.ones(64, 64) @ torch.ones(64, 64)


def note_in_parts() -> None:
    """Long work of a user's own, such as a download, that says so."""
    for _ in range(10):
        time.sleep(SLOW_S / 10)
        drivetrain.note_progress()


STALLS: dict[str, tuple[Callable[[], None], float]] = {
    "stopped": (stop, HEARTBEAT_S),
    "deadlock": (deadlock, STALL_S),
    "endless loop": (loop_for_ever, BUSY_S),
    "other collective": (call_something_else, STALL_S),
    "stopped while saving": (stop, HEARTBEAT_S),
}
SLOW = ("compile", "validation", "long work", "data")


class Once:
    """Does something on one rank in one place, once."""

    def __init__(self, act: Callable[[], None], place: str, rank: int, times: int, path: Path) -> None:
        self.act, self.place, self.rank, self.times, self.path = act, place, rank, times, path

    def __call__(self, place: str) -> None:
        if place == self.place and int(os.environ["RANK"]) == self.rank:
            self.times -= 1
            if self.times == -1:
                note(self.path)
                self.act()

    def in_worker(self, index: int) -> None:
        """For a data set: the first sample takes long."""
        self("data")


class Saving(drivetrain.Callback):
    """Writes checkpoints, and is asked for its state while it does."""

    def __init__(self, directory: Path, at: Callable[[str], None]) -> None:
        self.directory, self.at = directory, at

    def state_dict(self) -> dict[str, Any]:
        self.at("saving")
        return {}

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step in (2, 4):
            trainer.save_checkpoint(self.directory / f"step_{trainer.global_step}")


def run(once: Once, directory: Path) -> None:
    """Train; one rank validates much longer than the other where that is asked for."""
    busy_s = BUSY_S if once.path.name in STALLS else 60.0
    callbacks = [Saving(directory / "checkpoints", once)] if once.place == "saving" else []
    runner = trainer(
        directory, max_epochs=1, limit_train_batches=12, callbacks=callbacks,
        patience=Patience(heartbeat_s=HEARTBEAT_S, stall_s=STALL_S, busy_s=busy_s),
    )  # fmt: skip
    validation = loader() if once.place == "validation" else None
    runner.fit(Net(once), loader(in_worker=once.in_worker), validation)


def trial(seed: int, directory: Path) -> None:
    """One kind of stall."""
    draw = random.Random(seed)
    name = list(STALLS)[seed % len(STALLS)]
    act, patience_s = STALLS[name]
    is_saving = name == "stopped while saving"
    rank = draw.randrange(2)
    times = 1 if is_saving else draw.randrange(1, 9)
    print(f"{name} on rank {rank} the {times + 1}. time", flush=True)
    adopt_orphans()
    console, at = directory / "console.txt", directory / name
    once = Once(act, "saving" if is_saving else "forward", rank, times, at)
    pid = fork(functools.partial(run, once, directory), console)
    exit_code = wait_for_end(pid)
    took_s = time.time() - noted(at)
    text = console.read_text()
    check_nothing_left(within_s=END_S)
    assert exit_code == 1, (exit_code, text)
    assert f"[rank-stalled] rank {rank} of 2 has stalled" in text, text
    last = text[text.rindex("Rank ") :]
    assert last.startswith(f"Rank {rank} (stalled):"), text
    assert (f"Rank {1 - rank}:\n" in text and "in backward" in text) or is_saving, text
    assert ("cannot show its stack" if act is stop else f"in {act.__name__}") in last, text
    assert took_s <= bound(patience_s + END_S), f"ended {took_s:.1f} s after the stall\n{text}"
    (path,) = (directory / "drivetrain_failures").iterdir()
    assert f"CAUSE: rank {rank} has stalled" in path.read_text()
    if is_saving:
        assert [one.name for one in list_checkpoints(directory / "checkpoints")] == ["step_2"]


def slow_trial(seed: int, directory: Path) -> None:
    """One kind of slowness, which is no stall."""
    draw = random.Random(seed)
    name, rank = SLOW[seed % len(SLOW)], draw.randrange(2)
    print(f"slow {name} on rank {rank}", flush=True)
    adopt_orphans()
    place = {"validation": "validation", "data": "data"}.get(name, "forward")
    act = note_in_parts if name == "long work" else compute
    once: Once = Once(act, place, rank, draw.randrange(3), directory / "at")
    if name == "validation":
        once = EachTime(lambda: time.sleep(0.04), place, rank, 0, directory / "at")
    console = directory / "console.txt"
    exit_code = wait_for_end(fork(functools.partial(run, once, directory), console))
    assert exit_code == 0, console.read_text()
    assert (directory / "at").exists()
    check_nothing_left(within_s=END_S)


class EachTime(Once):
    """Does it in each batch."""

    def __call__(self, place: str) -> None:
        self.times = 0
        super().__call__(place)
