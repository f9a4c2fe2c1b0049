"""The check for a training of one's own finds what is not in a checkpoint, and nothing where all is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from drivetrain import Callback, Trainer
from drivetrain.testing.fixtures import NumberedDataset
from drivetrain.testing.same_run import SameRun, Stop, assert_same_run
from tests.unit.trainer.runs import QUIET, Classifier


class Good(Classifier):
    """All of its state is in checkpoints."""


class Forgetful(Classifier):
    """Counts in an attribute, and trains by it."""

    num_batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.num_batches += 1
        return self.loss_of(batch) / self.num_batches


class Logging(Classifier):
    """Logs what it has in an attribute."""

    best = 9.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        self.best = min(self.best, 0.5 + 0.1 * self.global_step) if self.global_step < 2 else self.best
        self.log("best", self.best)
        return loss


class OwnNoise(Classifier):
    """Draws from a generator that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = random.Random(1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss_of(batch) * (1 + self.noise.random())


class Once(Callback):
    """Does something at its first step alone, and does not say in its state that it did."""

    is_done = False

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if not self.is_done:
            self.is_done = True
            trainer.optimizers[0].param_groups[0]["lr"] *= 0.5


class Order:
    """A loader that goes on from where its attribute stands, and not the run."""

    def __init__(self) -> None:
        self.batches = list(DataLoader(NumberedDataset(18), batch_size=3))
        self.epoch = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter(self.batches[self.epoch :] + self.batches[: self.epoch])


def maker(module: type[Classifier], *callbacks: type[Callback], data: Any = None) -> Any:
    def make(directory: Path) -> tuple[Trainer, dict[str, Any]]:
        trainer = Trainer(
            **QUIET,
            max_epochs=2,
            log_every_n_steps=1,
            callbacks=[one() for one in callbacks],
            default_root_dir=directory,
        )
        loader = data() if data is not None else DataLoader(NumberedDataset(18), batch_size=3, shuffle=True)
        return trainer, {"model": module(), "train_dataloaders": loader}

    return make


def test_a_training_whose_state_is_in_checkpoints_passes(tmp_path: Path) -> None:
    """A user would look for a fault that is not there."""
    state = torch.get_rng_state()
    assert_same_run(maker(Good), stops=[1, 6, 7], samples=lambda batch: batch[2], directory=tmp_path)
    assert_same_run(maker(Good), stops=[Stop(3, "on_train_batch_end"), Stop(2, lost_steps=2)])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (maker(Forgetful), r"saved in on_step_end of step 3, killed there\).\n +First: after step 4: weights 'net.0.w"),
        (maker(Logging), "First: in the row at step 4, best is 9.0 and not 0.5"),
        (maker(OwnNoise), "First: after step 4: weights 'net.0.weight', weights 'net.0.bias'"),
        (maker(Good, Once), "First: after step 5: weights|First: after step 4: .*options of its groups"),
    ],
    ids=["attribute", "logged", "generator", "callback"],
)
def test_what_is_not_in_a_checkpoint_is_named(make: Any, text: str, tmp_path: Path) -> None:
    """The check would pass whatever is forgotten, or a user not know where to look."""
    with pytest.raises(AssertionError, match=text):
        assert_same_run(make, stops=[3], directory=tmp_path)


def test_samples_that_differ_are_named(tmp_path: Path) -> None:
    """An order that depends on how often a loader was begun would show as other weights alone."""
    with pytest.raises(AssertionError, match=r"micro-batch after step 8 \(samples \[9.*has samples \[12, 13, 14\]"):
        assert_same_run(maker(Good, data=Order), stops=[8], samples=lambda batch: batch[2], directory=tmp_path)


def test_a_stop_that_does_not_come_is_said(tmp_path: Path) -> None:
    """A check that compares a run with itself."""
    assert "it ends, and was to be saved" in str(SameRun(maker(Good), tmp_path).difference(Stop(99)))


def test_each_step_is_a_stop(tmp_path: Path) -> None:
    """Only some of a run would be looked at by default."""
    assert SameRun(maker(Good), tmp_path).all_stops() == range(1, 13)
