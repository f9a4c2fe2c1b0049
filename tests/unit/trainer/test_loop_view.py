"""The loops of a trainer, as scripts read them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from drivetrain import Callback, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, fit, loader


class Look(Callback):
    """Notes counters around each micro-batch."""

    def __init__(self) -> None:
        self.started: list[tuple[int, ...]] = []
        self.ended: list[tuple[int, ...]] = []
        self.last: list[bool] = []
        self.epochs: list[tuple[int, int]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        progress = trainer.fit_loop.epoch_loop.batch_progress
        self.started.append((batch_idx, progress.current.ready - 1, progress.current.completed))
        assert trainer.fit_loop.epoch_loop.total_batch_idx == progress.total.started - 1 == progress.total.processed
        self.last.append(trainer.is_last_batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        progress = trainer.fit_loop.epoch_loop.batch_progress
        self.ended.append((trainer.fit_loop.batch_idx, progress.current.completed, progress.total.completed))
        assert trainer.is_last_batch == self.last[-1] == progress.is_last_batch

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        count = trainer.fit_loop.epoch_progress.current
        self.epochs.append((count.ready, count.completed))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_micro_batches_are_counted_inside_of_windows(accumulate: int) -> None:
    """A bar or a schedule of a script would stand still inside of a window, or be one off."""
    look = Look()
    _, trainer = fit(max_epochs=2, callbacks=[look], accumulate_grad_batches=accumulate)
    assert look.started == [(index, index, index) for index in range(6)] * 2
    assert look.ended == [(index, index + 1, 6 * epoch + index + 1) for epoch in range(2) for index in range(6)]
    assert look.last == [False, False, False, False, False, True] * 2
    assert look.epochs == [(1, 0), (2, 1)]
    loop = trainer.fit_loop
    assert loop.epoch_progress.total.completed == loop.epoch_progress.total.ready == loop.current_epoch == 2
    assert loop.global_step == trainer.global_step and loop.max_batches == 6


@pytest.mark.parametrize(("remainder", "last"), [("drop", 3), ("carry", 5)])
def test_the_last_batch_is_the_last_that_is_trained_on(remainder: str, last: int) -> None:
    """What is done in it would never be done."""
    look = Look()
    with pytest.warns(UserWarning, match="do not fill a window|did not fill a window"):
        fit(callbacks=[look], accumulate_grad_batches=4, remainder=remainder)
    assert look.last.index(True) == last == len(look.last) - 1


def test_of_a_stream_the_last_batch_is_not_known() -> None:
    """A guess would be taken for the truth."""

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(8, dtype=torch.float64), torch.tensor(0))] * 4)

    look = Look()
    fit(data=torch.utils.data.DataLoader(Stream(), batch_size=2), callbacks=[look])
    assert look.last == [False, False] and look.started[-1] == (1, 1, 1)


def test_limits_are_set_through_the_loop_inside_of_a_run_too() -> None:
    """A script that trains for longer would end as before."""
    trainer = Trainer(**QUIET, max_epochs=1)
    module = Classifier()
    trainer.fit(module, loader())
    trainer.fit_loop.max_epochs = 3
    trainer.fit_loop.min_epochs = 2
    trainer.fit(module, loader())
    assert (trainer.max_epochs, trainer.min_epochs, trainer.current_epoch) == (3, 2, 3)

    class Ends(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.fit_loop.max_steps = 4

    _, trainer = fit(callbacks=[Ends()])
    assert trainer.global_step == trainer.fit_loop.epoch_loop.max_steps == 4


def test_predictions_are_there_at_the_end_of_the_prediction_and_not_kept() -> None:
    """A callback would have to gather them; or they would fill the memory as long as the trainer lives."""

    class Keep(Callback):
        def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.predict_loop.predictions, trainer.predict_loop.max_batches))

    seen: list[Any] = []
    trainer = Trainer(**QUIET, callbacks=[Keep()])
    returned = trainer.predict(Classifier(), loader(8))
    assert seen == [(returned, [2])] and trainer.predict_loop.num_dataloaders == 1
    assert trainer.predict_loop.predictions == []
    trainer.test(Classifier(), [loader(8), loader(12)], verbose=False)
    assert trainer.test_loop.max_batches == [2, 3] and trainer.validate_loop.max_batches == []


def test_what_a_loop_does_not_have_says_what_to_read() -> None:
    """An AttributeError that says nothing; or a value that is set, and changes nothing."""
    loop = Trainer(**QUIET).fit_loop
    with pytest.raises(AttributeError, match=r"trainer.fit_loop.epoch_loop has no .*_batches.*trainer.global_step"):
        loop.epoch_loop._batches_that_stepped  # noqa: B018
    with pytest.raises(AttributeError, match=r"fit_loop.epoch_loop._batches_that_stepped cannot be set"):
        loop.epoch_loop._batches_that_stepped = 3
    with pytest.raises(AttributeError, match=r"trainer.fit_loop has no attribute 'no_such': .*trainer.current_epoch"):
        loop.no_such  # noqa: B018
    with pytest.raises(AttributeError, match="cannot be set"):
        loop.epoch_loop.max_steps = 3
    with pytest.raises(AttributeError, match="no setter"):
        Trainer(**QUIET).fit_loop = 3  # type: ignore[misc]
