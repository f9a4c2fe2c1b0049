"""A run that goes on within an epoch reports for it what metric objects had gathered before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drivetrain import ModelCheckpoint, Trainer, seed_everything
from tests.unit.trainer.runs import QUIET, Classifier, loader


class Mean(nn.Module):
    """Keeps its sums as a metric of torchmetrics does: in attributes that are in no module's state."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.values: list[Tensor] = []
        self.num = 0

    def update(self, value: Tensor) -> None:
        self.total = self.total + value.double()
        self.values.append(value.double())
        self.num += 1

    def compute(self) -> Tensor:
        assert len(self.values) == self.num
        return (self.total + torch.stack(self.values).max()) / self.num


class PlainMean:
    """The same, of no framework."""

    def __init__(self) -> None:
        self.inner = [0.0, 0]

    def reset(self) -> None:
        self.inner = [0.0, 0]

    def update(self, value: Tensor) -> None:
        self.inner[0] += float(value)
        self.inner[1] += 1

    def compute(self) -> float:
        return self.inner[0] / self.inner[1]


class Measured(Classifier):
    """Logs metric objects: its own, one of a part of it, one of a collection, and a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.plain = Mean(), PlainMean()
        self.many = nn.ModuleDict({"first": Mean()})
        self.reported: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        for name, metric in {"own": self.own, "plain": self.plain, "first": self.many["first"]}.items():
            metric.update(loss.detach())
            self.log(name, metric, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        names = ("own", "plain", "first")
        self.reported.append({name: float(self.trainer.callback_metrics[name]) for name in names})


def train(root: Path, *, steps: int, **options: Any) -> Measured:
    seed_everything(1, verbose=False)
    module = Measured()
    keeper = ModelCheckpoint(root, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None}, callbacks=keeper, max_steps=steps, default_root_dir=root
    )
    trainer.fit(module, loader(24, shuffle=True), **options)
    return module


@pytest.mark.parametrize("stop", [2, 5, 6, 7])
def test_values_gathered_before_a_stop_count(tmp_path: Path, stop: int) -> None:
    """The value of the epoch would be that of its last part alone, and nobody would be told."""
    whole = train(tmp_path / "whole", steps=12)
    train(tmp_path / "again", steps=stop)
    again = train(tmp_path / "again", steps=12, resume="auto")
    assert len(whole.reported) == 2
    assert again.reported == whole.reported[-len(again.reported) :]
    assert len(again.reported) == (1 if stop > 6 else 2)
