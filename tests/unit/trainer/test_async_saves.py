"""`ModelCheckpoint(save_async=True)` in whole runs of one rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from drivetrain import Callback, CheckpointError, ModelCheckpoint, Trainer
from drivetrain.base.files import hash_file
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.checkpoint.verify import problems
from drivetrain.testing.fixtures import make_dataset
from tests.unit.fabric.test_saves import Gate
from tests.unit.trainer.runs import QUIET, Classifier


def fit(directory: Path, *callbacks: Callback, save_async: bool = True, **options: Any) -> ModelCheckpoint:
    """Ten steps with a checkpoint after every second one."""
    torch.manual_seed(1)
    given = {"filename": "{step}", "every_n_train_steps": 2, "save_top_k": 2, "save_last": True}
    keeper = ModelCheckpoint(directory, save_async=save_async, **{**given, **options})
    trainer = Trainer(**{**QUIET, "enable_checkpointing": True}, callbacks=[*callbacks, keeper], max_steps=10)
    trainer.fit(Classifier(dropout=0.1), DataLoader(make_dataset(100), batch_size=5, shuffle=True))
    return keeper


class Opened(Callback):
    """Saves of the run go through a gate that opens after a step."""

    def __init__(self, gate: Gate, step: int) -> None:
        self.gate, self.at = gate, step
        self.there: list[list[str]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.run.fabric.saves.write = self.gate

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        directory = Path(trainer.checkpoint_callback.dirpath)
        names = os.listdir(directory) if directory.exists() else []
        self.there.append(sorted(name for name in names if name.startswith("step")))
        if trainer.global_step == self.at:
            self.gate.opened.set()


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_the_same_files_are_kept_as_by_saves_that_wait(tmp_path: Path) -> None:
    """Another retention, other names, or other weights in them."""
    keepers = [fit(tmp_path / name, save_async=name == "beside") for name in ("beside", "waited")]
    assert names_in(tmp_path / "beside") == ["last.ckpt", "latest", "step=10.ckpt", "step=8.ckpt"]
    assert names_in(tmp_path / "beside") == names_in(tmp_path / "waited")
    for step in ("step=8.ckpt", "step=10.ckpt"):
        assert problems(tmp_path / "beside" / step) == []
    assert os.path.realpath(tmp_path / "beside" / "last.ckpt") == str(tmp_path / "beside" / "step=10.ckpt")
    first, second = ({**one.state_dict(), "dirpath": ""} for one in keepers)
    assert str(first).replace("beside", "waited") == str(second)
    states = [torch.load(tmp_path / name / "step=8.ckpt" / "state.pt") for name in ("beside", "waited")]
    for key, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][key])
    rng = [hash_file(tmp_path / name / "step=8.ckpt" / "rank_0.pt") for name in ("beside", "waited")]
    assert rng[0] == rng[1]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """A save that is called asynchronous and waits; or one that holds a later step."""
    opened = Opened(Gate(), 3)
    fit(tmp_path, opened, save_top_k=-1)
    assert opened.there[2] == []  # step 3 was made while the checkpoint of step 2 was not there
    for step in (2, 4, 6, 8, 10):
        directory = tmp_path / f"step={step}.ckpt"
        assert problems(directory) == [] and read_manifest(directory).step == step
        assert torch.load(directory / "state.pt")["trainer"]["global_step"] == step


def test_an_old_checkpoint_goes_only_when_the_new_one_is_there(tmp_path: Path) -> None:
    """No checkpoint at all, if the process dies while the new one is written."""
    gate = Gate(is_open=True)

    class Closing(Opened):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_step_end(trainer, pl_module)
            if trainer.global_step == 3:  # what follows is the save of step 4
                trainer.checkpoint_callback._end_pending(trainer)
                trainer.run.fabric.saves.write = self.gate = Gate()

    closing = Closing(gate, 5)
    fit(tmp_path, closing, save_top_k=1, save_last=None)
    assert closing.there[4] == ["step=2.ckpt"]
    assert names_in(tmp_path) == ["latest", "step=10.ckpt"]


def test_a_save_that_fails_ends_the_run_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    """A run that goes on without checkpoints, or has deleted the last one for one that failed."""

    class Filling(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 4:
                trainer.checkpoint_callback._end_pending(trainer)
                trainer.run.fabric.saves.write = Gate(is_open=True, fails=True)

    with pytest.raises(CheckpointError, match="No space left") as caught:
        fit(tmp_path, Filling(), save_top_k=1)
    assert caught.value.code == "checkpoint-write"
    assert names_in(tmp_path) == ["last.ckpt", "latest", "step=2.ckpt"] and problems(tmp_path / "step=2.ckpt") == []


def test_an_error_of_the_user_waits_for_what_is_being_written(tmp_path: Path) -> None:
    """A good checkpoint thrown away because the run failed while it was written."""

    class Failing(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, Failing())
    assert names_in(tmp_path) == ["last.ckpt", "latest", "step=2.ckpt"] and problems(tmp_path / "step=2.ckpt") == []
