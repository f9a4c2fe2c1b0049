"""Validation, logs and schedules come in any unit, whatever the windows, also after a resume."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from drivetrain import Callback, ConfigError, LearningRateMonitor, ModelCheckpoint, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, fit, loader


class Watch(Callback):
    """Notes the steps after which validation runs."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.steps.append(trainer.global_step)


class Slow(Callback):
    """Each step takes 41 seconds."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.progress.seconds += 41


def validated(**options: Any) -> list[int]:
    """Steps of the validations of 3 epochs of 6 micro-batches of 4 samples."""
    watch = Watch()
    callbacks = [watch, *options.pop("callbacks", ())]
    fit(val_data=loader(8), callbacks=callbacks, num_sanity_val_steps=0, **{"max_epochs": 3, **options})
    return watch.steps


@pytest.mark.parametrize(
    ("every", "size", "expected"),
    [
        ("5 steps", 1, [5, 10, 15]),
        ("2 steps", 4, [2, 4, 6]),
        ("7 micro-batches", 1, [7, 14]),
        ("7 micro-batches", 2, [4, 7]),
        ("20 samples", 1, [5, 10, 15]),
        ("30 samples", 1, [8, 15]),
        ("30 samples", 3, [3, 5]),
        ("0.5 epochs", 1, [3, 6, 9, 12, 15, 18]),
        ("1.5 epochs", 1, [9, 18]),
        ("1 epoch", 1, [6, 12, 18]),
        ("2 epochs", 4, [4]),
    ],
)
def test_validation_is_due_in_any_unit(every: str, size: int, expected: list[int]) -> None:
    """It would be counted in micro-batches, begin anew in each epoch, or never meet the end of a window."""
    assert validated(val_check_interval=every, accumulate_grad_batches=size) == expected


def test_time_decides_when_it_was_asked_for() -> None:
    """Hours would be read as steps."""
    for every in ("100 s", timedelta(seconds=100)):
        assert validated(val_check_interval=every, callbacks=[Slow()]) == [3, 5, 8, 10, 13, 15, 18]


def test_what_comes_due_during_a_validation_is_left_out() -> None:
    """Where validation takes longer than its interval, each step would be followed by another."""

    class Long(Slow):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.progress.seconds += 290

    assert validated(val_check_interval="100 s", callbacks=[Long()], max_epochs=1) == [3, 6]


class SaveAndStop(Callback):
    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("stop", [1, 4, 6, 7, 11])
@pytest.mark.parametrize("options", [{"every": "4 steps"}, {"every": "30 samples"}, {"every": "0.3 epochs"}])
def test_a_resumed_run_validates_where_the_whole_one_does(options: Any, stop: int, tmp_path: Path) -> None:
    """It would count from where it was stopped, and its best checkpoint be another."""

    def run(callback: Any = None, ckpt_path: Any = None) -> list[int]:
        watch = Watch()
        callbacks = [watch] if callback is None else [watch, callback]
        trainer = Trainer(
            **QUIET, max_epochs=3, callbacks=callbacks, num_sanity_val_steps=0, val_check_interval=options["every"]
        )
        trainer.fit(Classifier(), loader(), loader(8), ckpt_path=ckpt_path)
        return watch.steps

    whole = run()
    first = run(SaveAndStop(tmp_path / "ck", stop))
    before = [step for step in first if step < stop]  # what followed on the save is done by the run that goes on
    assert before + run(ckpt_path=tmp_path / "ck") == whole


class Scheduled(Classifier):
    """The rate is the number of times that the scheduler was advanced."""

    def __init__(self, skipped: int = -1, **config: Any) -> None:
        super().__init__()
        self.config, self.skipped = config, skipped
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == self.skipped else loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, lambda number: float(number)), **self.config},
        }


@pytest.mark.parametrize(
    ("config", "size", "rates"),
    [
        ({"interval": "2 steps"}, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "2 steps"}, 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({"interval": "sample", "frequency": 8}, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "8 samples"}, 2, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "8 samples"}, 4, [0, 0, 0, 0, 2, 2, 2, 2]),
        ({"interval": "micro-batch"}, 4, [0, 0, 0, 0, 4, 4, 4, 4]),
        ({"interval": "0.5 epochs"}, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": "0.25 epochs", "frequency": 4}, 1, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({"interval": "2 epochs"}, 1, [0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_schedule_advances_once_for_each_multiple(config: Any, size: int, rates: list[int]) -> None:
    """The rate at a sample would depend on how the samples are cut into windows."""
    module, _ = fit(Scheduled(**config), loader(16), max_epochs=2, accumulate_grad_batches=size)
    assert module.rates == rates


def test_a_skipped_step_moves_a_schedule_of_samples_but_none_of_steps() -> None:
    """Samples that were seen would not count; or a step that was not made would."""
    for config, rates in (({"interval": "1 step"}, [0, 1, 1, 2]), ({"interval": "4 samples"}, [0, 1, 2, 3])):
        with pytest.warns(UserWarning, match="no weight"):
            module, _ = fit(Scheduled(skipped=1, **config), loader(16))
        assert module.rates == rates


def test_a_plateau_schedule_looks_once_at_a_value() -> None:
    """One value would count as several without progress, where a window crosses several multiples."""

    class Plateau(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
            config = {"scheduler": scheduler, "interval": "4 samples", "monitor": "val_loss"}
            return {"optimizer": optimizer, "lr_scheduler": config}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", 1.0)

    _, trainer = fit(
        Plateau(), loader(16), loader(4), accumulate_grad_batches=2, max_epochs=2, val_check_interval="1 step",
        num_sanity_val_steps=0, callbacks=[SeedMetric()],
    )  # fmt: skip
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.5


class SeedMetric(Callback):
    """There is a value before the first step."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.metrics.callback_metrics["val_loss"] = torch.tensor(1.0)


def test_rows_and_rates_are_written_in_any_unit() -> None:
    """A run with other windows would have other rows; or rates be written in rows of their own."""
    for size, steps in ((1, [3, 5, 8, 10]), (2, [2, 3, 4, 5])):
        logger = ListLogger()

        class Logged(Classifier):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.log("loss", loss := self.loss_of(batch), on_epoch=False)
                return loss

        _, trainer = fit(
            Logged(), loader(40), logger=logger, log_every="10 samples", accumulate_grad_batches=size,
            callbacks=[LearningRateMonitor("step")],
        )  # fmt: skip
        assert [step for step, _ in logger.of("loss")] == [step for step, _ in logger.of("lr-SGD")] == steps
        assert trainer.log_every_n_steps == 1


def test_checkpoints_are_kept_in_any_unit(tmp_path: Path) -> None:
    """A run would be saved by steps although samples were asked for."""
    keeper = ModelCheckpoint(tmp_path, "{step}", every="40 samples", save_top_k=-1)
    fit(max_epochs=2, callbacks=[keeper], enable_checkpointing=True)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["step=10.ckpt", "step=12.ckpt"]


@pytest.mark.parametrize("option", ["val_check_interval", "log_every"])
def test_a_part_of_a_stream_is_refused(option: str) -> None:
    """It would never come."""

    class Stream:
        def __iter__(self) -> Any:
            return iter(loader(8))

    with pytest.raises(ConfigError, match="no length") as caught:
        fit(data=Stream(), val_data=loader(8), **{option: "0.5 epochs"})
    assert caught.value.code == "interval"
    with pytest.raises(ConfigError, match="no length"):
        fit(data=Stream(), val_data=loader(8), val_check_interval=0.5)
