from __future__ import annotations

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.last_pointer import resolve_last
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from tests.unit.callbacks.fake_trainer import FakeTrainer, ScriptedCollectives


def kept(keeper: ModelCheckpoint) -> list[str]:
    directory = Path(keeper.dirpath or "")
    names = os.listdir(directory) if directory.exists() else []
    return sorted(name.removesuffix(".ckpt") for name in names if name != "last.ckpt")


def test_the_newest_are_kept_in_numeric_order(tmp_path: Path) -> None:
    """`checkpoint_10` sorted before `checkpoint_2`, so that the newest is deleted."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(filename="{step}", every_n_train_steps=1, save_top_k=2)
    trainer.start(keeper)
    for step in range(1, 13):
        trainer.step()
        assert kept(keeper) == sorted(f"step={number}" for number in range(max(1, step - 1), step + 1))
    assert keeper.best_model_path == keeper.last_model_path == str(Path(keeper.dirpath or "") / "step=12.ckpt")


def test_the_best_are_kept_by_score(tmp_path: Path) -> None:
    """The best model is deleted, or a bad one is kept."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="{step}", save_top_k=2)
    trainer.start(keeper)
    for value in (3.0, 1.0, 2.0, 5.0, 0.5):
        trainer.step()
        trainer.validate(val=value)
        trainer.end_epoch()
    assert kept(keeper) == ["step=2", "step=5"]
    assert Path(keeper.best_model_path).name == "step=5.ckpt"
    assert Path(keeper.kth_best_model_path).name == "step=2.ckpt"
    assert float(keeper.best_model_score or 0) == 0.5
    assert sorted(float(score) for score in keeper.best_k_models.values()) == [0.5, 1.0]
    assert trainer.saved == ["step=1.ckpt", "step=2.ckpt", "step=3.ckpt", "step=5.ckpt"]


def test_mode_max_keeps_the_greatest(tmp_path: Path) -> None:
    """The worst accuracy is kept."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="acc", mode="max", filename="{step}")
    trainer.start(keeper)
    for value in (0.1, 0.9, 0.5, float("nan")):
        trainer.step()
        trainer.validate(acc=value)
    assert kept(keeper) == ["step=2"]


def test_nan_is_the_worst_value(tmp_path: Path) -> None:
    """A broken model that is never beaten, because nothing is smaller than nan."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="{step}")
    trainer.start(keeper)
    for value in (float("nan"), 7.0):
        trainer.step()
        trainer.validate(val=value)
    assert kept(keeper) == ["step=2"]


def test_a_better_one_of_the_same_name_replaces_it(tmp_path: Path) -> None:
    """`best-v1`, `best-v2` and so on; or the new one deleted in place of the old one."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="best")
    trainer.start(keeper)
    for value in (3.0, 2.0, 1.0):
        trainer.step()
        trainer.validate(val=value)
    assert kept(keeper) == ["best"]
    assert float(keeper.best_model_score or 0) == 1.0


def test_another_runs_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    """Two runs in one directory that overwrite each other."""
    for _ in range(2):
        trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(filename="model")
        trainer.start(keeper)
        trainer.step()
        trainer.end_epoch()
        trainer.finish()
    assert kept(keeper) == ["model", "model-v1"]


def test_the_last_state_is_saved_once(tmp_path: Path) -> None:
    """The last steps of a finished run are lost, or the same state is written twice."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer.start(keeper)
    trainer.step(7)
    trainer.end_epoch()
    trainer.finish()
    assert trainer.saved == ["step=5.ckpt", "step=7.ckpt"]
    trainer, keeper = FakeTrainer(tmp_path / "b"), ModelCheckpoint(every_n_train_steps=5)
    trainer.start(keeper)
    trainer.step(10)
    trainer.finish()
    assert len(trainer.saved) == 2


def test_the_last_state_is_kept_beside_the_best(tmp_path: Path) -> None:
    """The end of a run that was not its best is lost, or pushes the best one out."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="{step}")
    trainer.start(keeper)
    for value in (1.0, 2.0):
        trainer.step()
        trainer.validate(val=value)
        trainer.end_epoch()
    trainer.finish()
    assert kept(keeper) == ["step=1", "step=2"]
    assert Path(keeper.best_model_path).name == "step=1.ckpt"
    assert Path(keeper.last_model_path).name == "step=2.ckpt"


def test_save_last_leads_to_the_newest_and_keeps_one(tmp_path: Path) -> None:
    """`last.ckpt` that leads to a deleted checkpoint, or one more checkpoint at each save."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="{step}", save_last=True)
    trainer.start(keeper)
    for step, value in enumerate((1.0, 2.0, 3.0, 0.5), 1):
        trainer.step()
        trainer.validate(val=value)
        assert (
            resolve_last(Path(keeper.dirpath or "") / "last.ckpt") == Path(keeper.dirpath or "") / f"step={step}.ckpt"
        )
        assert kept(keeper) == sorted({f"step={1 if step < 4 else 4}", f"step={step}"})


def test_nothing_to_keep_saves_nothing(tmp_path: Path) -> None:
    """Checkpoints for a user who wants none."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(save_top_k=0)
    trainer.start(keeper)
    trainer.step()
    trainer.end_epoch()
    trainer.finish()
    assert trainer.saved == []


def test_the_old_one_goes_only_when_the_new_one_is_there(tmp_path: Path) -> None:
    """A full disk that costs the last good checkpoint, and a state that names one that is not there."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(filename="{step}", every_n_train_steps=1)
    trainer.start(keeper)
    trainer.step()
    before = keeper.state_dict()
    trainer.save_error = OSError("No space left on device")
    with pytest.raises(OSError, match="No space"):
        trainer.step()
    assert kept(keeper) == ["step=1"]
    assert keeper.state_dict() == before


def test_a_checkpoint_knows_itself_and_what_has_to_go(tmp_path: Path) -> None:
    """A kill between saving and deleting that leaves the old checkpoint for ever."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(filename="{step}", every_n_train_steps=1)
    trainer.start(keeper)
    trainer.step(2)
    left_over = Path(keeper.dirpath or "") / "step=1.ckpt"
    left_over.mkdir()
    again, second = FakeTrainer(tmp_path), ModelCheckpoint(filename="{step}", every_n_train_steps=1)
    again.start(second, restore=Path(keeper.last_model_path))
    assert second.best_model_path == keeper.best_model_path
    assert kept(second) == ["step=2"]  # also where the run that goes on has nothing more to save
    again.step()
    assert kept(second) == ["step=3"]


def test_a_resumed_run_does_not_save_its_first_state_again(tmp_path: Path) -> None:
    """The same state twice, once before and once after a resume."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(every_n_train_steps=2)
    trainer.start(keeper)
    trainer.step(2)
    again, second = FakeTrainer(tmp_path), ModelCheckpoint(every_n_train_steps=2)
    again.start(second, restore=Path(keeper.last_model_path))
    again.finish()
    assert again.saved == []


def test_what_lies_elsewhere_is_not_deleted(tmp_path: Path) -> None:
    """A run that goes on in another directory and deletes the checkpoints of the first."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(tmp_path / "a", "{step}", every_n_train_steps=1)
    trainer.start(keeper)
    trainer.step()
    again, second = FakeTrainer(tmp_path), ModelCheckpoint(tmp_path / "b", "{step}", every_n_train_steps=1)
    again.start(second, restore=Path(keeper.last_model_path))
    again.step()
    assert kept(keeper) == ["step=1"]
    assert kept(second) == ["step=2"]


def test_a_new_run_with_the_same_callback_saves_its_end(tmp_path: Path) -> None:
    """A second model that happens to end at the same step, and is taken for saved."""
    keeper = ModelCheckpoint(every_n_train_steps=100, save_top_k=-1)
    for name in "ab":
        trainer = FakeTrainer(tmp_path / name)
        trainer.start(keeper)
        trainer.step(3)
        trainer.finish()
        assert trainer.saved == ["epoch=0-step=3.ckpt"]


def test_sanity_check_evaluation_and_dev_runs_save_nothing(tmp_path: Path) -> None:
    """A checkpoint of an untrained model that counts as the best one."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val")
    trainer.callbacks = [keeper]
    trainer.fire("setup", "fit")
    trainer.fire("on_fit_start")
    trainer.sanity_checking = True
    trainer.validate(val=0.0)
    trainer.sanity_checking = False
    trainer.state.fn = "validate"
    trainer.validate(val=0.0)
    trainer.fast_dev_run = True
    trainer.start(ModelCheckpoint())
    trainer.step()
    trainer.end_epoch()
    trainer.finish()
    assert trainer.saved == []


def test_a_metric_that_nobody_logs_is_an_error_with_the_names_that_are_there(tmp_path: Path) -> None:
    """A typing error that shows as a run without checkpoints."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    trainer.start(ModelCheckpoint(monitor="val_los"))
    trainer.step(train_loss=1.0)
    trainer.validate(val_loss=1.0)
    with pytest.raises(ConfigError) as error:
        trainer.end_epoch()
    assert error.value.code == "monitor-missing"
    assert "train_loss, val_loss" in str(error.value)


def test_an_interval_of_steps_may_come_before_the_first_report(tmp_path: Path) -> None:
    """A run that dies at step 100 because it validates at step 1000; or loses those steps in a crash."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="val", filename="{step}", every_n_train_steps=2)
    trainer.start(keeper)
    with pytest.warns(UserWarning, match="not reported yet"):
        trainer.step(2)
    trainer.step(2)
    assert kept(keeper) == ["step=4"]
    trainer.validate(val=1.0)
    trainer.step(2)
    assert kept(keeper) == ["step=6"]
    assert Path(keeper.best_model_path).name == "step=6.ckpt"


def test_a_metric_of_training_is_looked_at_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    """A run with validation that ranks by the loss of the epoch before."""
    trainer = FakeTrainer(tmp_path, num_val_batches=[1])
    keeper = ModelCheckpoint(monitor="train", filename="{step}")
    trainer.start(keeper)
    for value in (2.0, 1.0, 3.0):
        trainer.step()
        trainer.validate(val=0.0)
        trainer.end_epoch(train=value)
    assert trainer.saved == ["step=1.ckpt", "step=2.ckpt"]
    assert float(keeper.best_model_score or 0) == 1.0


def test_epochs_are_counted_from_one(tmp_path: Path) -> None:
    """Every second epoch that means the first, third and fifth."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(every_n_epochs=2, save_top_k=-1)
    trainer.start(keeper)
    for _ in range(4):
        trainer.step()
        trainer.end_epoch()
    assert trainer.saved == ["epoch=1-step=2.ckpt", "epoch=3-step=4.ckpt"]


def test_names_are_filled_in(tmp_path: Path) -> None:
    """Names that cannot be told apart, or hold a slash of a metric as a directory."""
    trainer = FakeTrainer(tmp_path)
    trainer.report({"val/acc": 0.875})
    for options, name in (
        ({"filename": "{epoch:02d}-{val/acc:.2f}"}, "epoch=00-val_acc=0.88"),
        ({"filename": "e{epoch}-{step:04d}", "auto_insert_metric_name": False}, "e0-0001"),
        ({"filename": "{other:.1f}"}, "other=nan"),
    ):
        keeper = ModelCheckpoint(tmp_path / name, every_n_train_steps=1, **options)  # type: ignore[arg-type]
        trainer.progress.step = 0
        trainer.start(keeper)
        trainer.step()
        assert kept(keeper) == [name]


def test_a_format_that_does_not_fit_is_a_clear_error(tmp_path: Path) -> None:
    """A ValueError about a format code, without the file name that it is about."""
    trainer = FakeTrainer(tmp_path)
    trainer.start(ModelCheckpoint(filename="{loss:d}", every_n_train_steps=1))
    with pytest.raises(ConfigError) as error:
        trainer.step(loss=1.5)
    assert error.value.code == "checkpoint-name"


def test_an_exception_can_be_a_reason_to_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hours of work lost to an error; or, with several ranks, a rank that saves alone and waits for ever."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint(every_n_train_steps=100, save_on_exception=True)
    trainer.start(keeper)
    trainer.step(3)
    trainer.fire("on_exception", KeyboardInterrupt())
    assert kept(keeper) == ["exception-epoch=0-step=3"]
    two = FakeTrainer(tmp_path, collectives=ScriptedCollectives(0, []))
    two.start(ModelCheckpoint(every_n_train_steps=100, save_on_exception=True))
    two.step(3)
    with caplog.at_level(logging.WARNING):
        two.fire("on_exception", ValueError())
    assert two.saved == [] and "Not saved on ValueError" in caplog.text


def test_a_failed_save_does_not_hide_the_exception(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The full disk is seen, and not what ended the run."""
    trainer = FakeTrainer(tmp_path)
    trainer.start(ModelCheckpoint(every_n_train_steps=100, save_on_exception=True))
    trainer.step()
    trainer.save_error = OSError("No space left on device")
    with caplog.at_level(logging.WARNING):
        trainer.fire("on_exception", ValueError())
    assert "No space left" in caplog.text


def test_loggers_are_on_the_disk_before_the_checkpoint(tmp_path: Path) -> None:
    """A run that goes on from a checkpoint whose rows were never written."""
    events: list[str] = []

    class NotingLogger:
        def save(self) -> None:
            events.append(f"save before {len(trainer.saved)}")

        def after_save_checkpoint(self, callback: Any) -> None:
            events.append(f"after {len(trainer.saved)}")

    trainer = FakeTrainer(tmp_path)
    trainer.loggers = [NotingLogger()]
    trainer.start(ModelCheckpoint(every_n_train_steps=1))
    trainer.step()
    assert events == ["save before 0", "after 1"]


def test_the_default_place_is_the_loggers_directory(tmp_path: Path) -> None:
    """Checkpoints of one run in the directory of another."""
    trainer, keeper = FakeTrainer(tmp_path), ModelCheckpoint()
    trainer.start(keeper)
    assert keeper.dirpath == str(tmp_path / "checkpoints")
    trainer.log_dir = str(tmp_path / "version_3")
    trainer.start(keeper)
    assert keeper.dirpath == str(tmp_path / "version_3" / "checkpoints")


def test_arguments_that_do_not_fit_are_refused() -> None:
    """A second interval that is silently ignored."""
    for options, code in (
        ({"every_n_train_steps": 1, "every_n_epochs": 1}, "checkpoint-interval"),
        ({"every_n_epochs": -1}, "checkpoint-interval"),
        ({"save_top_k": -2}, "checkpoint-top-k"),
        ({"mode": "best"}, "monitor-mode"),
    ):
        with pytest.raises(ConfigError) as error:
            ModelCheckpoint(**options)  # type: ignore[arg-type]
        assert error.value.code == code


def test_callbacks_are_told_apart_by_what_they_watch() -> None:
    """Two callbacks of which one gets the state of the other."""
    keys = {
        ModelCheckpoint().state_key,
        ModelCheckpoint(monitor="a").state_key,
        ModelCheckpoint(monitor="a", mode="max").state_key,
        ModelCheckpoint(every_n_train_steps=5).state_key,
        ModelCheckpoint(train_time_interval=timedelta(hours=1)).state_key,
    }
    assert len(keys) == 5


def test_verbose_says_what_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user who asked to hear of it, and hears nothing."""
    trainer = FakeTrainer(tmp_path)
    trainer.start(ModelCheckpoint(monitor="loss", verbose=True))
    trainer.step()
    trainer.end_epoch(loss=0.5)
    assert "epoch=0-step=1.ckpt (loss 0.5)" in capsys.readouterr().out
