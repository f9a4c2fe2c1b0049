"""A small run of two ranks, and its launcher as a process that a trial can look at."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import drivetrain
from drivetrain.testing.leaks import find_descendants
from tests.faults import trial
from tests.faults.checks import first_step_s
from tests.ranks.launched_programs import all_gone


class Numbers(Dataset[torch.Tensor]):
    """Samples from a data worker."""

    def __init__(self, in_worker: Callable[[int], None]) -> None:
        self.in_worker = in_worker

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        self.in_worker(index)
        return torch.full((4,), float(index))


class Net(drivetrain.Module):
    """A linear model; `at` is called in each step with its own place."""

    def __init__(self, at: Callable[[str], None]) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.at = at

    def configure_model(self) -> None:
        self.at("constructor")

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.at("forward")
        self.log("loss", 1.0)
        output = self.net(batch)
        output.register_hook(lambda gradient: self.at("backward hook"))
        loss: torch.Tensor = output.square().mean()
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.at("validation")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def loader(*, in_worker: Callable[[int], None] = lambda index: None, collate: Any = None) -> DataLoader[torch.Tensor]:
    """Batches from one data worker."""
    return DataLoader(Numbers(in_worker), batch_size=2, num_workers=1, collate_fn=collate)


def trainer(directory: Path, **arguments: Any) -> drivetrain.Trainer:
    """Two ranks that are forks of this process."""
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0}
    return drivetrain.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", default_root_dir=directory, enable_progress_bar=False,
        enable_model_summary=False, **(quiet | arguments),
    )  # fmt: skip


def fork(function: Callable[[], Any], console: Path) -> int:
    """Call a function in a fork of this process, in a session and with a console of its own; its process id."""
    with open(console, "wb") as file:
        return trial.fork(function, file.fileno())


def wait_for_end(pid: int, *, timeout_s: float = 60.0) -> int:
    """The exit code of a child.

    Raises:
        AssertionError: It did not end.
    """
    exit_code = trial.wait_for(pid, timeout_s)
    assert exit_code is not None, f"{pid} did not end within {timeout_s} s"
    return exit_code


def check_nothing_left(*, within_s: float) -> None:
    """No living descendant of this process.

    Raises:
        AssertionError: There is one.
    """
    left = all_gone(find_descendants(os.getpid()), within_s=bound(within_s))
    left += [pid for pid in find_descendants(os.getpid()) if all_gone([pid], within_s=0.0)]
    names = [f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}" for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not names, f"living after {within_s} s: {names}"


def bound(seconds: float) -> float:
    """A bound of time; more where the machine is shared."""
    return seconds * max(1.0, first_step_s() / 10)


def note(path: Path) -> None:
    """Write the time down, once."""
    if not path.exists():
        path.write_text(repr(time.time()))


def noted(path: Path) -> float:
    """A time that was written down."""
    return float(path.read_text())
