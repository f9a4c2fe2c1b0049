"""Windows of a fixed size, where a run goes on with another number of ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from drivetrain import DDP, ModelCheckpoint, SingleDevice, Trainer, seed_everything
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.fixtures import make_dataset
from tests.unit.trainer.runs import QUIET, Classifier, loader, weights


def train(root: Path, steps: int, *, accumulate: int = 2, data: Any = None, **options: Any) -> Any:
    """Steps of this rank with a checkpoint after each: weights, the window of the argument, warnings of windows."""
    seed_everything(1, verbose=False)
    world = current_cluster().world_size
    module = Classifier()
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None}, strategy=DDP() if world > 1 else SingleDevice(), devices=world,
        accumulate_grad_batches=accumulate, max_steps=steps, callbacks=ModelCheckpoint(root, every_n_train_steps=1),
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, data or loader(29, shuffle=True, batch_size=2), resume="auto", **options)
    said = [str(one.message) for one in caught if "window" in str(one.message)]
    return weights(module), trainer.accumulate_grad_batches, said


def largest_difference(left: Any, right: Any) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in right)


@pytest.mark.parametrize("worlds", [(2, 1, 2), (2, 3, 1), (1, 2, 4)])
def test_a_step_keeps_its_samples(ranks: Any, tmp_path: Path, worlds: tuple[int, ...]) -> None:
    """The same script on fewer ranks would step on half of the samples, and train another model without a word."""
    ((expected, _, _),) = ranks.run(lambda: train(tmp_path / "whole", 10, accumulate=2 * worlds[0]), world=1)
    for world, steps in zip(worlds, (3, 6, 10), strict=True):
        found, given, said = ranks.run(lambda steps=steps: train(tmp_path / "cut", steps), world=world)[0]
        assert given == 2 and said == []
    assert largest_difference(found, expected) < 1e-12


def test_arguments_that_were_changed_hold(ranks: Any, tmp_path: Path) -> None:
    """Who sets the window for other ranks by hand, or on purpose, would not get it."""
    ranks.run(lambda: train(tmp_path / "cut", 3), world=2)
    ((found, _, said),) = ranks.run(lambda: train(tmp_path / "cut", 4, accumulate=1), world=1)
    ranks.run(lambda: train(tmp_path / "by_hand", 3), world=2)
    ((expected, _, _),) = ranks.run(lambda: train(tmp_path / "by_hand", 4, accumulate=4), world=1)
    assert said == [] and largest_difference(found, expected) > 1e-3


def test_windows_that_cannot_be_cut_are_named(ranks: Any, tmp_path: Path) -> None:
    """The step would change, and nobody would know."""
    data = make_dataset(24)
    own = DataLoader(data, batch_sampler=_Own(SequentialSampler(data), 2, False))
    ranks.run(lambda: train(tmp_path, 2, data=own), world=2)
    ((_, _, said),) = ranks.run(lambda: train(tmp_path, 3, data=own), world=1)
    assert len(said) == 1 and "2 micro-batches on each of 2 ranks" in said[0]


class _Own(BatchSampler):
    """A batch sampler of the user's own."""
