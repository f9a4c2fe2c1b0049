"""Checkpoints and learning rates are due in any unit, once for each interval."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.callbacks.learning_rate_monitor import LearningRateMonitor
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from tests.unit.callbacks.fake_trainer import FakeTrainer


def run(trainer: FakeTrainer, num_steps: int) -> list[str]:
    """Steps of 3 micro-batches, 12 samples and 3 seconds, 4 to an epoch."""
    for _ in range(num_steps):
        trainer.progress.micro_step += 3
        trainer.progress.samples += 12
        trainer.progress.seconds += 3
        trainer.progress.epoch_micro_step += 2  # `step` adds the third
        trainer.step()
        if trainer.progress.epoch_micro_step == 12:
            trainer.end_epoch()
    return [name.removesuffix(".ckpt") for name in trainer.saved]


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("3 steps", [3, 6]),
        (Interval(3, "steps"), [3, 6]),
        ("7 micro-batches", [3, 5, 7]),
        ("30 samples", [3, 5, 8]),
        ("0.75 epochs", [3, 6]),
        ("1.5 epochs", [6]),
        ("1 epoch", [4, 8]),
        ("2 epochs", [8]),
        ("7 s", [3, 5, 7]),
        (timedelta(seconds=7), [3, 5, 7]),
    ],
)
def test_a_checkpoint_is_due_in_any_unit(tmp_path: Path, every: Any, steps: list[int]) -> None:
    """An interval that no window ends at would never be saved."""
    trainer = FakeTrainer(tmp_path, num_training_batches=12)
    trainer.start(ModelCheckpoint(every=every, filename="{step}", save_top_k=-1))
    assert run(trainer, 8) == [f"step={step}" for step in steps]


def test_a_resumed_run_saves_where_the_first_would_have(tmp_path: Path) -> None:
    """Where a run is stopped more often than the interval is long, nothing would ever be saved."""
    trainer = FakeTrainer(tmp_path)
    trainer.progress.step, trainer.progress.samples, trainer.progress.seconds = 2, 24, 6.0
    trainer.start(
        ModelCheckpoint(every="30 samples", filename="{step}", save_top_k=-1),
        ModelCheckpoint(every="7 s", filename="s{step}", save_top_k=-1),
    )
    assert sorted(run(trainer, 3)) == ["sstep=3", "sstep=5", "step=3", "step=5"]


def test_the_familiar_names_mean_the_same() -> None:
    """A callback that is written anew would not find the state of the old one."""
    for every, options in (
        ("5 steps", {"every_n_train_steps": 5}),
        ("2 h", {"train_time_interval": timedelta(hours=2)}),
        ("3 epochs", {"every_n_epochs": 3}),
    ):
        assert ModelCheckpoint(every=every).state_key == ModelCheckpoint(**options).state_key  # type: ignore[arg-type]
    assert ModelCheckpoint(every="5 samples").state_key != ModelCheckpoint(every="6 samples").state_key


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"every": "5 steps", "every_n_epochs": 1}, "checkpoint-interval"),
        ({"every": "5 steps", "train_time_interval": timedelta(1)}, "checkpoint-interval"),
        ({"every": "5 stepps"}, "interval"),
        ({"train_time_interval": timedelta(0)}, "interval"),
    ],
)
def test_intervals_that_do_not_fit_are_refused(options: Any, code: str) -> None:
    """One of the two would be ignored."""
    with pytest.raises(ConfigError) as caught:
        ModelCheckpoint(**options)
    assert caught.value.code == code


def test_a_part_of_an_epoch_without_a_length_is_refused_before_training(tmp_path: Path) -> None:
    """Hours of training would leave no checkpoint."""
    with pytest.raises(ConfigError, match="no length"):
        FakeTrainer(tmp_path, num_training_batches=float("inf")).start(ModelCheckpoint(every="0.5 epochs"))


class RowLogger:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))


def test_rates_are_written_at_an_interval_of_their_own(tmp_path: Path) -> None:
    """A row would hold the rate of the step after it, or come with every row of the log."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    trainer, logger = FakeTrainer(tmp_path), RowLogger()
    trainer.loggers, trainer.optimizers = [logger], [optimizer]
    trainer.start(LearningRateMonitor("30 samples"))
    for rate in range(1, 6):
        optimizer.param_groups[0]["lr"] = float(rate)
        for index in range(2):
            trainer.fire("on_train_batch_start", None, index)
        optimizer.param_groups[0]["lr"] = rate + 0.5  # the schedule moves before the row is written
        run(trainer, 1)
    assert logger.rows == [(3, {"lr-SGD": 3.0}), (5, {"lr-SGD": 5.0})]


def test_an_interval_of_rates_without_a_unit_is_refused() -> None:
    """It would be taken for steps or for epochs."""
    with pytest.raises(ConfigError) as caught:
        LearningRateMonitor("30")
    assert caught.value.code == "logging-interval" and "'step'" in caught.value.do
