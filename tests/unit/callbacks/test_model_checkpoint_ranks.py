from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from tests.unit.callbacks.fake_trainer import FakeTrainer, ScriptedCollectives


def kept(keeper: ModelCheckpoint) -> list[str]:
    directory = Path(keeper.dirpath or "")
    names = os.listdir(directory) if directory.exists() else []
    return sorted(name.removesuffix(".ckpt") for name in names if name != "last.ckpt")


def test_time_is_looked_at_between_steps(tmp_path: Path) -> None:
    """A run of hours without a checkpoint, or one at every step, or one that is later each time."""
    trainer = FakeTrainer(tmp_path)
    keeper = ModelCheckpoint(train_time_interval=timedelta(seconds=10), filename="{step}")
    trainer.start(keeper)
    for _ in range(9):
        trainer.progress.seconds += 4
        trainer.step()
    assert trainer.saved == ["step=3.ckpt", "step=5.ckpt", "step=8.ckpt"]


def test_two_ranks_agree_on_time_with_few_messages(tmp_path: Path) -> None:
    """Ranks that save at different steps and wait for each other for ever; or one message for each step."""
    messages: list[Any] = []
    zero = FakeTrainer(tmp_path, collectives=ScriptedCollectives(0, messages))
    zero.start(ModelCheckpoint(every="1000 s", filename="{step}"))
    for _ in range(2500):
        zero.progress.seconds += 1
        zero.step()
    num_messages = len(messages)
    one = FakeTrainer(tmp_path, collectives=ScriptedCollectives(1, messages))
    one.start(ModelCheckpoint(train_time_interval=timedelta(seconds=1000), filename="{step}"))
    one.step(2500)
    assert messages == []
    assert one.saved == zero.saved and len(zero.saved) == 2
    assert num_messages < 60


def test_rank_zero_decides_for_all(tmp_path: Path) -> None:
    """A metric that differs between ranks, so that each waits for another checkpoint."""
    messages: list[Any] = []
    keepers = [ModelCheckpoint(monitor="val", filename="{step}-{val:.0f}", save_top_k=1) for _ in range(2)]
    trainers = []
    for rank, values in enumerate(((3.0, 1.0, 2.0), (1.0, 2.0, 3.0))):
        trainer = FakeTrainer(
            tmp_path / str(rank), num_val_batches=[1], collectives=ScriptedCollectives(rank, messages)
        )
        trainer.start(keepers[rank])
        for value in values:
            trainer.step()
            trainer.validate(val=value)
        trainer.finish()
        trainers.append(trainer)
    assert messages == []
    assert trainers[0].saved == trainers[1].saved
    assert keepers[0].best_model_path == keepers[1].best_model_path
    assert keepers[0].state_dict() == keepers[1].state_dict()


def test_one_rank_deletes(tmp_path: Path) -> None:
    """Ranks that delete the same directory at the same time."""
    messages: list[Any] = []
    zero = FakeTrainer(tmp_path, collectives=ScriptedCollectives(0, messages))
    keeper = ModelCheckpoint(filename="{step}", every_n_train_steps=1)
    zero.start(keeper)
    zero.step(50)
    assert kept(keeper) == ["step=50"]
    for step in range(1, 50):
        (Path(keeper.dirpath or "") / f"step={step}.ckpt").mkdir()
    one = FakeTrainer(tmp_path, collectives=ScriptedCollectives(1, messages))
    one.start(ModelCheckpoint(filename="{step}", every_n_train_steps=1))
    one.step(50)
    assert len(kept(keeper)) == 50


def test_an_error_of_rank_zero_is_raised_on_all(tmp_path: Path) -> None:
    """Ranks that wait for ever for the decision of a rank that has failed."""
    messages: list[Any] = []
    for rank in range(2):
        trainer = FakeTrainer(tmp_path, collectives=ScriptedCollectives(rank, messages))
        trainer.start(ModelCheckpoint(monitor="val"))
        trainer.step()
        with pytest.raises(ConfigError):
            trainer.end_epoch()
    assert messages == []
