"""R-11: an exception on one rank, anywhere, ends all ranks, and it is the last thing on the console."""

from __future__ import annotations

import functools
import os
import random
import time
from pathlib import Path
from typing import Any

import torch

import drivetrain
from drivetrain.loggers.logger import Logger
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

PLACES = (
    "loader worker",
    "collate",
    "forward",
    "backward hook",
    "callback",
    "logger",
    "checkpoint load",
    "constructor",
)
END_S = 5.0
TEXT = "a fault of the test"


class Fault:
    """Raises on one rank in one place, once it has been there a few times."""

    def __init__(self, place: str, rank: int, times: int, path: Path) -> None:
        self.place, self.rank, self.times, self.path = place, rank, times, path

    def __call__(self, place: str) -> None:
        if place != self.place or int(os.environ["RANK"]) != self.rank:
            return
        self.times -= 1
        if self.times < 0:
            note(self.path)
            raise ArithmeticError(TEXT)

    def in_worker(self, index: int) -> None:
        """For a data set."""
        self("loader worker")

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """For a loader without workers."""
        self("collate")
        return torch.stack(samples)


class FaultyCallback(drivetrain.Callback):
    """Fails in a hook, or while a checkpoint is loaded."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def on_train_batch_end(self, *_: Any) -> None:
        self.fault("callback")

    def state_dict(self) -> dict[str, Any]:
        return {"one": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fault("checkpoint load")


class FaultyLogger(Logger):
    """Fails when it is written to."""

    name = "faulty"

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def log_hyperparams(self, params: Any) -> None:
        return

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.fault("logger")


def run(fault: Fault, directory: Path) -> None:
    """Train until it fails."""
    checkpoint = directory / "checkpoint"
    if fault.place == "checkpoint load":
        saver = trainer(
            directory, max_steps=1, callbacks=[FaultyCallback(Fault("", 0, 0, fault.path)), Saver(checkpoint)]
        )
        saver.fit(Net(lambda place: None), loader())
    run = trainer(
        directory, max_epochs=2, callbacks=[FaultyCallback(fault)], logger=FaultyLogger(fault),
        log_every_n_steps=1,
    )  # fmt: skip
    data = loader(in_worker=fault.in_worker, collate=fault.collate)
    run.fit(Net(fault), data, ckpt_path=checkpoint if checkpoint.exists() else None)


class Saver(drivetrain.Callback):
    """Writes one checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)


def trial(seed: int, directory: Path) -> None:
    """One place, one rank."""
    draw = random.Random(seed)
    place = PLACES[seed % len(PLACES)]
    rank = draw.randrange(2)
    times = 0 if place in ("constructor", "checkpoint load") else draw.randrange(8)
    print(f"raise in {place} on rank {rank} the {times + 1}. time", flush=True)
    adopt_orphans()
    console, at = directory / "console.txt", directory / "at"
    exit_code = wait_for_end(fork(functools.partial(run, Fault(place, rank, times, at), directory), console))
    took_s = time.time() - noted(at)
    text = console.read_text()
    check_nothing_left(within_s=END_S)
    assert exit_code == 1, (exit_code, text)
    assert took_s <= bound(END_S), f"ended {took_s:.1f} s after the exception\n{text}"
    lines = lines_of(text)
    assert lines[-1].strip() == f"ArithmeticError: {TEXT}", text
    assert text.count(f"[rank-failed] rank {rank} of 2 failed:") == 1, text
    assert "Connection" not in text, text
    (path,) = (directory / "drivetrain_failures").iterdir()
    blocks = path.read_text().split("---- ")
    assert blocks[-1].startswith(f"CAUSE: rank {rank} failed: ") and lines_of(blocks[-1])[-1].endswith(TEXT), (
        path.read_text()
    )
    assert all(block.startswith("CONSEQUENCE") for block in blocks[1:-1]), path.read_text()


def lines_of(text: str) -> list[str]:
    """Without the note that says which samples were read."""
    kept = [line for line in text.splitlines() if "It came while micro-batch" not in line]
    return "\n".join(kept).rstrip().splitlines()
