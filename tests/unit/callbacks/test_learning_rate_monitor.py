from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.learning_rate_monitor import LearningRateMonitor
from tests.unit.callbacks.fake_trainer import FakeTrainer


class RowLogger:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))


def ready(tmp_path: Path, *optimizers: Any) -> tuple[FakeTrainer, RowLogger]:
    trainer, logger = FakeTrainer(tmp_path), RowLogger()
    trainer.loggers, trainer.optimizers = [logger], list(optimizers)
    return trainer, logger


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(1))]


def test_a_row_holds_the_rate_with_which_its_step_was_made(tmp_path: Path) -> None:
    """A curve that is one step ahead of the steps."""
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    trainer, logger = ready(tmp_path, optimizer)
    trainer.log_every_n_steps = 2
    trainer.start(LearningRateMonitor("step"))
    for rate in (1.0, 2.0, 3.0, 4.0):
        optimizer.param_groups[0]["lr"] = rate
        trainer.fire("on_train_batch_start", None, 0)
        optimizer.param_groups[0]["lr"] = rate + 1
        trainer.step()
    assert logger.rows == [(2, {"lr-SGD": 2.0}), (4, {"lr-SGD": 4.0})]


def test_epochs_are_written_when_they_begin(tmp_path: Path) -> None:
    """Rates of epochs that are written at each step."""
    trainer, logger = ready(tmp_path, torch.optim.SGD(parameters(), lr=0.5))
    trainer.start(LearningRateMonitor("epoch"))
    trainer.fire("on_train_epoch_start")
    trainer.fire("on_train_batch_start", None, 0)
    trainer.step()
    assert logger.rows == [(0, {"lr-SGD": 0.5})]


def test_both_intervals_together_write_no_step_twice(tmp_path: Path) -> None:
    """Two rows for the step at which an epoch ends and the next one begins."""
    trainer, logger = ready(tmp_path, torch.optim.SGD(parameters(), lr=0.5))
    trainer.start(LearningRateMonitor())
    for _ in range(2):
        trainer.fire("on_train_epoch_start")
        trainer.fire("on_train_batch_start", None, 0)
        trainer.step()
    assert [step for step, _ in logger.rows] == [0, 1, 2]


def test_every_optimizer_and_group_has_a_name_of_its_own() -> None:
    """Two rates under one name, of which one is lost."""
    groups = [{"params": parameters(), "lr": 0.1}, {"params": parameters(), "lr": 0.2, "name": "head"}]
    first, second = torch.optim.Adam(groups), torch.optim.Adam(parameters(), lr=0.3, weight_decay=0.4)
    named = torch.optim.SGD(parameters(), lr=0.5, momentum=0.9)
    config = SimpleNamespace(scheduler=torch.optim.lr_scheduler.StepLR(named, 1), name="warm")
    monitor = LearningRateMonitor(log_momentum=True, log_weight_decay=True)
    values = monitor.read([first, second, named], [config])
    assert {name: value for name, value in values.items() if name.count("-") < 2 and "warm-" not in name} == {
        "lr-Adam/pg1": 0.1,
        "lr-Adam/head": 0.2,
        "warm": 0.5,
    }
    assert values["lr-Adam-1"] == 0.3 and values["lr-Adam-1-weight_decay"] == 0.4
    assert values["warm-momentum"] == 0.9 and values["lr-Adam-1-momentum"] == 0.9


def test_without_a_logger_it_is_refused(tmp_path: Path) -> None:
    """Rates that were asked for and are written nowhere."""
    for action in (lambda: FakeTrainer(tmp_path).start(LearningRateMonitor()), lambda: LearningRateMonitor("batch")):
        with pytest.raises(ConfigError):
            action()
