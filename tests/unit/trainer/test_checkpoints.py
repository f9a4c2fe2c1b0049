"""A run that is stopped anywhere and resumed is the run that was not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import (
    Callback,
    CheckpointError,
    ConfigError,
    DataModule,
    ModelCheckpoint,
    Trainer,
    seed_everything,
)
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights


class Stochastic(Classifier):
    """Draws random numbers in each step; momentum and a schedule have a memory."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class SaveAndStop(Callback):
    def __init__(self, path: Path, step: int, weights_only: bool = False) -> None:
        self.path, self.step, self.weights_only = path, step, weights_only

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, weights_only=self.weights_only)
            trainer.should_stop = True


OPTIONS: dict[str, Any] = {"max_epochs": 3, "accumulate_grad_batches": 2, "num_sanity_val_steps": 0}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 8])
def test_a_resumed_run_equals_one_that_was_not_stopped(step: int, tmp_path: Path) -> None:
    """Batches would be repeated or left out, or the shuffle, the dropout or the schedule be another."""

    def run(**options: Any) -> tuple[Any, Trainer, ListLogger]:
        logger = ListLogger()
        module = Stochastic()
        trainer = Trainer(
            **{**QUIET, **OPTIONS, "logger": logger, "log_every_n_steps": 1}, callbacks=options.pop("callbacks", None)
        )
        trainer.fit(module, loader(20, shuffle=True), loader(8), **options)
        return module, trainer, logger

    seed_everything(3, verbose=False)
    whole, whole_trainer, whole_logger = run()
    seed_everything(3, verbose=False)
    run(callbacks=[SaveAndStop(tmp_path / "ck", step)])
    seed_everything(4, verbose=False)
    resumed, trainer, logger = run(ckpt_path=tmp_path / "ck")
    assert are_equal(weights(whole), weights(resumed))
    assert trainer.progress == whole_trainer.progress
    if step % 3:
        assert logger.rows == [row for row in whole_logger.rows if row[0] is not None and row[0] > step]
    assert (
        trainer.lr_scheduler_configs[0].scheduler.state_dict()
        == whole_trainer.lr_scheduler_configs[0].scheduler.state_dict()
    )


def test_state_of_callbacks_modules_and_data_comes_back(tmp_path: Path) -> None:
    """Early stopping would begin to count anew."""
    loaded: list[Any] = []

    class Counting(Callback):
        def __init__(self) -> None:
            self.number = 0

        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            self.number += 1

        def state_dict(self) -> dict[str, Any]:
            return {"number": self.number}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.number = state_dict["number"]

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["of_callback"] = "a"

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            loaded.append(checkpoint["of_callback"])

    class Own(Classifier):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["of_module"] = torch.arange(3)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            loaded.append(checkpoint["of_module"].tolist())

    class Data(DataModule):
        seen = 0

        def train_dataloader(self) -> Any:
            return loader()

        def state_dict(self) -> dict[str, Any]:
            return {"seen": 5}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.seen = state_dict["seen"]

    fit(Own(), Data(), callbacks=[Counting(), SaveAndStop(tmp_path / "ck", 4)], max_epochs=2)
    counting, data = Counting(), Data()
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[counting])
    trainer.fit(Own(), data, ckpt_path=tmp_path / "ck")
    assert loaded == ["a", [0, 1, 2]] and data.seen == 5
    assert counting.number == trainer.global_step == 6


def test_weights_alone_can_be_evaluated_but_not_gone_on_from(tmp_path: Path) -> None:
    """Training would go on with a fresh optimizer, without a word."""
    module, _ = fit(callbacks=[SaveAndStop(tmp_path / "ck", 2, weights_only=True)])
    fresh = Classifier()
    (values,) = Trainer(**QUIET).test(fresh, loader(8), ckpt_path=tmp_path / "ck", verbose=False)
    assert are_equal(weights(fresh), weights(module)) and values
    with pytest.raises(CheckpointError) as caught:
        Trainer(**QUIET, max_epochs=1).fit(Classifier(), loader(), ckpt_path=tmp_path / "ck")
    assert caught.value.code == "checkpoint-keys" and "optimizer_0" in str(caught.value)


def test_a_module_is_built_from_its_checkpoint(tmp_path: Path) -> None:
    """A script that predicts would have to know how the model was configured."""

    class Sized(Classifier):
        def __init__(self, width: int, name: str = "x") -> None:
            super().__init__()
            self.save_hyperparameters()
            self.extra = torch.nn.Linear(width, 1)

    module, trainer = fit(Sized(5, "y"))
    trainer.save_checkpoint(tmp_path / "ck")
    again = Sized.load_from_checkpoint(tmp_path / "ck")
    assert again.hparams == {"width": 5, "name": "y"} and are_equal(weights(again), weights(module))
    assert Sized.load_from_checkpoint(tmp_path / "ck", name="z").hparams.name == "z"

    class Other(Sized):
        def __init__(self, width: int, name: str = "x") -> None:
            super().__init__(width, name)
            self.later = torch.nn.Linear(1, 1, bias=False)

    with pytest.raises(CheckpointError, match=r"missing \['later.weight'\], unexpected nothing"):
        Other.load_from_checkpoint(tmp_path / "ck")
    Other.load_from_checkpoint(tmp_path / "ck", strict=False)


def test_another_number_of_schedulers_is_refused(tmp_path: Path) -> None:
    """A schedule would begin anew in the middle of the run."""
    _, trainer = fit(Stochastic())
    trainer.save_checkpoint(tmp_path / "ck")

    class Without(Stochastic):
        def configure_optimizers(self) -> Any:
            return super().configure_optimizers()["optimizer"]

    with pytest.raises(CheckpointError, match="holds 1 schedulers; the model has 0") as caught:
        fit_from(Without(), tmp_path / "ck")
    assert caught.value.code == "checkpoint-keys"


def fit_from(module: Classifier, path: Any, **options: Any) -> Trainer:
    trainer = Trainer(**{**QUIET, "max_epochs": 1, **options})
    trainer.fit(module, loader(), ckpt_path=path)
    return trainer


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    """More epochs would need a run from the beginning."""
    seed_everything(1, verbose=False)
    whole, _ = fit(Stochastic(), max_epochs=2)
    seed_everything(1, verbose=False)
    _, trainer = fit(Stochastic())
    trainer.save_checkpoint(tmp_path / "ck")
    module = Stochastic()
    assert fit_from(module, tmp_path / "ck", max_epochs=2).global_step == 12
    assert are_equal(weights(module), weights(whole))


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_kept_checkpoint_that_is_not_there_is_said(name: str) -> None:
    """A path called `best` would be looked for."""
    with pytest.raises(CheckpointError, match=f"ckpt_path='{name}'") as caught:
        fit_from(Classifier(), name)
    assert caught.value.code == "checkpoint-missing"


def test_there_is_nothing_to_save_before_a_run(tmp_path: Path) -> None:
    """An empty checkpoint would be written."""
    with pytest.raises(ConfigError) as caught:
        Trainer(**QUIET).save_checkpoint(tmp_path / "ck")
    assert caught.value.code == "outside-run" and list(tmp_path.iterdir()) == []


def test_an_evaluation_of_a_checkpoint_leaves_the_callbacks_as_they_are(tmp_path: Path) -> None:
    """After a test of the best weights the trainer would know the best of that time, and a stop would be forgotten."""
    keeper = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1, save_last=False)
    module, trainer = fit(val_data=loader(8), callbacks=[keeper], max_epochs=4, enable_checkpointing=True)
    known, first = keeper.state_dict(), min(keeper.best_k_models)
    trainer.test(module, loader(4), ckpt_path=first, verbose=False)
    assert keeper.state_dict() == known and len(keeper.best_k_models) == 4
