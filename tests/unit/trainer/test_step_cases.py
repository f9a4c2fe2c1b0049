"""Steps are what a run counts in: saving, schedules, and its end, whatever the windows and the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from drivetrain import Callback, ModelCheckpoint, Trainer
from drivetrain.testing.fixtures import make_dataset
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Counters(Callback):
    """Both counters after each micro-batch."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.pairs.append((trainer.micro_step, trainer.global_step))


def test_micro_batches_and_steps_have_a_counter_each() -> None:
    """Steps would be counted where nothing was updated."""
    counters = Counters()
    fit(data=loader(16), accumulate_grad_batches=2, callbacks=[counters])
    assert counters.pairs == [(1, 0), (2, 1), (3, 1), (4, 2)]


def test_checkpoints_come_after_optimizer_steps(tmp_path: Path) -> None:
    """A state would be saved in the middle of a window, once for each of its micro-batches, or at other steps."""
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(data=loader(32, batch_size=1), accumulate_grad_batches=4, callbacks=[saver], enable_checkpointing=True)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [f"step={step}.ckpt" for step in (2, 4, 6, 8)]


class Endless(IterableDataset[Any]):
    """The same samples over and over."""

    def __iter__(self) -> Iterator[Any]:
        data = make_dataset(8)
        while True:
            yield from (data[index] for index in range(len(data)))


def test_steps_alone_end_a_run_over_an_endless_stream(tmp_path: Path) -> None:
    """Everything would hang on epochs, which such a stream does not have."""
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    module, trainer = fit(
        None, DataLoader(Endless(), batch_size=2), max_epochs=None, max_steps=7, accumulate_grad_batches=2,
        callbacks=[saver], enable_checkpointing=True,
    )  # fmt: skip
    assert (trainer.global_step, trainer.current_epoch, module.count("train")) == (7, 0, 14)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [f"step={step}.ckpt" for step in (3, 6, 7)]


def test_a_stream_that_a_limit_breaks_off_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Its epoch would count as done: what comes after a resume would be trained on from the stream's beginning."""
    path = tmp_path / "broken-off"
    options: dict[str, Any] = {"max_epochs": None, "accumulate_grad_batches": 2}
    whole, _ = fit(None, DataLoader(Endless(), batch_size=3), max_steps=9, **options)
    _, trainer = fit(None, DataLoader(Endless(), batch_size=3), max_steps=5, **options)
    trainer.save_checkpoint(path)
    resumed = Classifier()
    trainer = Trainer(**{**QUIET, **options, "max_steps": 9})
    with pytest.warns(UserWarning, match="its first 10 batches are read and dropped"):
        trainer.fit(resumed, DataLoader(Endless(), batch_size=3), ckpt_path=path)
    assert are_equal(weights(resumed), weights(whole))


class Cosine(Classifier):
    """Its learning rate falls to 0 with the last step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.parametrize(("length", "size"), [(32, 1), (32, 4), (28, 3), (26, 2)])
def test_a_schedule_over_all_steps_ends_with_the_last_one(length: int, size: int) -> None:
    """The foretold number of steps would leave out short windows, or count micro-batches."""
    _, trainer = fit(Cosine(), loader(length), max_epochs=2, accumulate_grad_batches=size)
    assert trainer.estimated_stepping_batches == trainer.global_step
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


class Weighted(Classifier):
    """The weight of a loss is a number of tokens."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss_of(batch), "weight": 100 * batch_idx + 1}


def test_weights_of_losses_leave_the_count_of_samples_alone() -> None:
    """Data would be resumed from a position in tokens, or progress would be shown in units of the loss."""
    _, trainer = fit(Weighted(), loader(18), accumulate_grad_batches=2)
    assert trainer.progress.samples == 18
