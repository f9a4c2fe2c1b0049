"""One optimizer step can be followed in one sitting, and costs few calls."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drivetrain

MAX_FRAMES = 8
MAX_FILES = 6
MAX_CALLS = 60
NUM_STEPS = 50


class Probe(drivetrain.Module):
    """Notes the frames above its training step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.frames: list[tuple[str, str]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        frame: FrameType | None = sys._getframe()
        self.frames = []
        while frame is not None and frame.f_code.co_qualname != "fit_probe":
            if frame is not sys._getframe():
                self.frames.append((frame.f_code.co_filename, frame.f_code.co_qualname))
            frame = frame.f_back
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_probe(strategy: str = "auto") -> Probe:
    """A bare run: no callbacks, no logging."""
    module = Probe()
    trainer = drivetrain.Trainer(
        accelerator="cpu", max_epochs=1, strategy=strategy, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(NUM_STEPS * 2, 4)), batch_size=2))
    trainer._fabric.close()
    return module


def is_ours(path: str) -> bool:
    """A file of the library."""
    return "drivetrain" in path and "tests" not in path.rsplit("drivetrain", 1)[1] and "site-packages/torch" not in path


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_few_frames_in_few_files_stand_above_the_training_step(strategy: str) -> None:
    """A reader would lose the thread between `fit` and their own step."""
    ours = [(path, name) for path, name in fit_probe(strategy).frames if is_ours(path)]
    assert ours[-1][1] == "Trainer.fit"
    assert len(ours) <= MAX_FRAMES, "\n".join(name for _, name in ours)
    assert len({path for path, _ in ours}) <= MAX_FILES


def test_a_bare_step_makes_few_calls() -> None:
    """The loop would cost several times a hand-written one."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and is_ours(frame.f_code.co_filename):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        fit_probe()
    finally:
        sys.setprofile(None)
    per_step = {name: number for name, number in calls.items() if number >= NUM_STEPS}
    assert sum(per_step.values()) / NUM_STEPS <= MAX_CALLS, per_step
