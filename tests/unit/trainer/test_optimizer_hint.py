"""The hint at the end of a training whose optimizer takes long."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from drivetrain import Trainer
from drivetrain.profilers.time_spent import TimeSpent
from drivetrain.trainer.optimizer_hint import can_fuse, optimizer_hint
from tests.unit.trainer.runs import QUIET, Classifier, loader

PARAMETERS = [nn.Parameter(torch.zeros(2))]
LONG = {"forward": 5.0, "backward": 3.0, "optimizer": 2.0, "validation": 100.0, "loader start": 50.0}


class Own(Adam):
    """A user's."""


def test_an_optimizer_that_takes_long_and_could_be_fused_is_named() -> None:
    """Nobody would know of it; or validation would hide how much of the steps it takes."""
    hint = optimizer_hint(LONG, [AdamW(PARAMETERS)])
    assert "20 % of the steps" in hint and "AdamW" in hint and "fused=True" in hint
    assert optimizer_hint({**LONG, "optimizer": 0.5}, [AdamW(PARAMETERS)]) == ""
    assert optimizer_hint({}, [AdamW(PARAMETERS)]) == ""


@pytest.mark.parametrize(
    ("optimizer", "can"),
    [
        (AdamW(PARAMETERS), True),
        (SGD(PARAMETERS, lr=0.1), True),
        (SGD([{"params": PARAMETERS, "fused": True}], lr=0.1), False),
        (AdamW(PARAMETERS, fused=True), False),
        (AdamW(PARAMETERS, foreach=True), False),
        (torch.optim.RMSprop(PARAMETERS), False),
        (Own(PARAMETERS), False),
        (AdamW([nn.Parameter(torch.zeros(2, device="meta"))]), False),
        (AdamW([nn.Parameter(torch.zeros(2, dtype=torch.complex64))]), False),
    ],
    ids=lambda value: value if isinstance(value, bool) else type(value).__name__,
)
def test_only_what_torch_would_accept_is_proposed(optimizer: Optimizer, can: bool) -> None:
    """The hint would lead into an error, or undo what the user has chosen."""
    assert can_fuse(optimizer) is can


def test_the_hint_stands_once_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be shown in each epoch, or never."""

    class Wide(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = AdamW(self.parameters())
            optimizer.register_step_pre_hook(lambda *_: [next(ticks) for _ in range(20)] and None)
            return optimizer

    ticks = itertools.count(0.0, 1.0)  # each look at the clock takes a second
    trainer = Trainer(**{**QUIET, "enable_progress_bar": True, "max_epochs": 2})
    trainer.time_spent = TimeSpent(lambda: next(ticks))
    trainer.fit(Wide(), loader())
    told = capsys.readouterr().err
    assert told.count("Training took") == told.count("try fused=True") == 1
