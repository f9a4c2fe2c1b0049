"""R-04: a run is killed before or after any change that it makes to the file system, in a save and in what follows."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import drivetrain
from drivetrain.checkpoint.verify import newest_valid, problems
from drivetrain.testing.fixtures import make_dataset
from tests.faults.rows import Row
from tests.faults.trial import fork, wait_for

# What brings a file, or a name, to the disk or takes it away.
CHANGES = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "link")
NUM_STEPS = 8


class Deaths:
    """Counts changes, and kills this process before or after one of them.

    Args:
        number: Of the change; `None` counts alone.
        is_after: It is made first.
    """

    def __init__(self, number: int | None, *, is_after: bool) -> None:
        self.number, self.is_after, self.count = number, is_after, 0

    def watch(self) -> None:
        """From here on, for the rest of this process."""
        for name in CHANGES:
            setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            is_due = self.count == self.number
            self.count += 1
            if is_due and not self.is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = change(*args, **kwargs)
            if is_due:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return changed


class Tiny(drivetrain.Module):
    """A layer with dropout, so that the random state matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(directory: Path, deaths: Deaths) -> None:
    """Train, keep the best two and the last, and write what came out."""
    drivetrain.seed_everything(1)
    keeper = drivetrain.ModelCheckpoint(
        directory / "kept", monitor="loss", every_n_train_steps=1, save_top_k=2, save_last=True
    )
    trainer = drivetrain.Trainer(
        accelerator="cpu", devices=1, max_steps=NUM_STEPS, callbacks=keeper, default_root_dir=directory,
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Tiny()
    deaths.watch()
    trainer.fit(module, DataLoader(make_dataset(24), batch_size=4, shuffle=True), resume="auto")
    torch.save([p.detach() for p in module.parameters()], directory / "weights.pt")
    (directory / "count").write_text(str(deaths.count))


def run(directory: Path, deaths: Deaths) -> int | None:
    """Train in a process of its own; its exit code."""
    directory.mkdir(exist_ok=True)
    with open(directory / "console.txt", "ab") as console:
        return wait_for(fork(lambda: train(directory, deaths), console.fileno()), 60.0)


def trial(seed: int, directory: Path) -> None:
    """One change, before or after; then the run is started again, as often as it takes to end."""
    draw = random.Random(seed)
    reference = directory.parent / "whole"
    if not (reference / "count").exists():
        assert run(reference, Deaths(None, is_after=False)) == 0, (reference / "console.txt").read_text()
    number, is_after = draw.randrange(int((reference / "count").read_text())), draw.random() < 0.5
    print(f"killed {'after' if is_after else 'before'} change {number}")
    assert run(directory, Deaths(number, is_after=is_after)) == -signal.SIGKILL, "it was not killed"
    kept = directory / "kept"
    names = [path for path in kept.glob("*.ckpt")] if kept.is_dir() else []
    wrong = {path.name: found for path in names if path.name != "last.ckpt" and (found := problems(path))}
    assert not wrong, f"I7: {wrong}"
    # The second save is begun when the first is whole.
    if len(names) > 1:
        assert newest_valid(kept)[0] is not None, "I7: there is no checkpoint"
    assert run(directory, Deaths(None, is_after=False)) == 0, (directory / "console.txt").read_text()
    left, right = torch.load(directory / "weights.pt"), torch.load(reference / "weights.pt")
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True)), "I1: other weights"
    hidden = [path.name for path in kept.iterdir() if path.name.startswith(".") and ".claim-" not in path.name]
    assert not hidden, f"left behind: {hidden}"


ROW = Row(
    "R-04", "kill -9 before or after any change to the file system, also of retention", trial, trials=200, smoke=6
)
