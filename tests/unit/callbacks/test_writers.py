from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import drivetrain.callbacks
from drivetrain import BasePredictionWriter, Callback, OnExceptionCheckpoint, Trainer
from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.prediction_writer import in_order
from drivetrain.callbacks.progress_theme import RichProgressBarTheme
from tests.unit.trainer.runs import QUIET, Classifier, fit, loader


class Notes(BasePredictionWriter):
    def __init__(self, interval: str) -> None:
        super().__init__(interval)
        self.batches: list[Any] = []
        self.epochs: list[Any] = []

    def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *rest: Any) -> None:
        self.batches.append((batch_indices, rest[2], len(prediction)))

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        self.epochs.append((predictions, batch_indices, in_order(trainer, predictions, batch_indices)))


@pytest.mark.parametrize("interval", ["batch", "epoch", "batch_and_epoch"])
def test_predictions_come_with_the_indices_of_their_samples(interval: str) -> None:
    """Nobody could tell which sample a prediction is of."""
    notes, module = Notes(interval), Classifier()
    trainer = Trainer(**QUIET, callbacks=[notes])
    kept = trainer.predict(module, loader(10, shuffle=True), return_predictions=interval != "batch")
    batches = [len(indices) for indices, _, _ in notes.batches]
    assert batches == ([] if interval == "epoch" else [4, 4, 2])
    assert len(notes.epochs) == (interval != "batch")
    features = loader(10).dataset.tensors[0]  # type: ignore[attr-defined]
    for predictions, indices, ordered in notes.epochs:
        assert all(torch.equal(*pair) for pair in zip(predictions, kept, strict=True))
        assert sorted(index for batch in indices for index in batch) == list(range(10))
        torch.testing.assert_close(torch.cat(ordered), module.net(features).detach(), rtol=0, atol=1e-14)


def test_an_interval_that_means_nothing_is_refused() -> None:
    """Nothing would be written, after hours."""
    with pytest.raises(ConfigError) as raised:
        BasePredictionWriter("epochs")
    assert raised.value.code == "write-interval"


class Broken(Callback):
    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == 3:
            raise KeyError("broken")


def test_a_run_that_an_exception_ends_can_go_on(tmp_path: Path) -> None:
    """Everything since the last checkpoint would be lost."""
    whole, _ = fit(max_epochs=2)
    keeper = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(KeyError, match="broken"):
        fit(max_epochs=2, callbacks=[keeper, Broken()])
    module = Classifier()
    Trainer(**QUIET, max_epochs=2).fit(module, loader(), ckpt_path=keeper.ckpt_path)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), whole.parameters(), strict=True))


def test_a_save_that_fails_does_not_hide_the_exception(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The user would look for a fault of the disk."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError, match="broken"):
        fit(callbacks=[OnExceptionCheckpoint(tmp_path / "file"), Broken()])
    assert "Not saved on KeyError" in caplog.text


def test_every_callback_can_be_imported_from_the_folder() -> None:
    """A familiar import would fail."""
    for name in drivetrain.callbacks.__all__:
        kind = getattr(drivetrain.callbacks, name)
        assert issubclass(kind, Callback) or kind is RichProgressBarTheme
    with pytest.raises(AttributeError, match="Nothing"):
        drivetrain.callbacks.Nothing  # noqa: B018
