"""A run that is told to end, together with saves beside it, stores, resume="auto", averages and carried windows."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from drivetrain import EMA, Callback, ModelCheckpoint, StochasticWeightAveraging, Trainer, seed_everything
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.checkpoint.verify import problems
from tests import stores
from tests.unit.callbacks.test_finetuning import Headed
from tests.unit.fabric.test_remainder import MICRO_BATCHES, LogsBatches
from tests.unit.fabric.test_saves import Gate
from tests.unit.trainer.runs import QUIET, ListLogger, are_equal, loader, weights
from tests.unit.trainer.test_preemption import Told, check_goes_on, handlers_as_found, run

__all__ = ["handlers_as_found"]  # a fixture of each test here, too


class Opened(Told):
    """Likewise; the saves of the run go through a gate, which opens when the signal is sent."""

    def __init__(self, number: int, gate: Gate) -> None:
        super().__init__("batch", number, signal.SIGTERM)
        self.gate = gate

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.run.fabric.saves.write = self.gate

    def _look(self, hook: str) -> None:
        super()._look(hook)
        if self.fired == self.number:
            self.gate.opened.set()


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_run_that_is_started_again_finds_where_it_was_told_to_end(
    tmp_path: Path, is_kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler's next start would go on from an older step, or from nothing."""

    def start(root: Path, told: Told | None = None) -> Any:
        seed_everything(3, verbose=False)
        keepers = [ModelCheckpoint(root, every_n_train_steps=2, save_top_k=-1)] if is_kept else []
        return run(root, told=told, callbacks=keepers, enable_checkpointing=is_kept, resume="auto")

    whole, _, _ = start(tmp_path / "whole")
    for number in (5, 3):
        _, first, _ = start(tmp_path / "told", Told("batch", number))
        assert first.was_preempted
    assert first.global_step == 5
    assert [one.name for one in (tmp_path / "told").glob("preempted*")] == ["preempted-step=5.ckpt"]
    resumed, trainer, _ = start(tmp_path / "told")
    assert f"goes on from {first.preempted_checkpoint} (step 5)" in capsys.readouterr().out
    assert trainer.global_step == 10 and are_equal(weights(resumed), weights(whole))


def test_a_store_holds_the_checkpoint_of_a_run_that_was_told_to_end(tmp_path: Path) -> None:
    """A directory called like the URL; or one more in the store after each preemption."""
    stores.register()
    url = f"shared://{tmp_path}/store"
    seed_everything(3, verbose=False)
    whole, _, _ = run(tmp_path)
    for number in (3, 1):
        seed_everything(3, verbose=False)
        _, first, _ = run(url, told=Told("batch", number), resume="auto")
    assert first.preempted_checkpoint == f"{url}/preempted-step=3.ckpt"
    assert sorted(one.name for one in (tmp_path / "store").glob("*.ckpt")) == ["preempted-step=3.ckpt"]
    resumed, _, _ = run(url, ckpt_path="last")
    assert are_equal(weights(resumed), weights(whole))


def test_a_save_beside_training_ends_before_the_last_one(tmp_path: Path) -> None:
    """Two saves at once, or the one that was being written thrown away."""
    keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1, save_async=True)
    _, trainer, _ = run(tmp_path, told=Opened(6, Gate()), callbacks=[keeper], enable_checkpointing=True)
    assert trainer.was_preempted and trainer.preempted_checkpoint == str(tmp_path / "preempted-step=3.ckpt")
    assert sorted(one.name for one in tmp_path.glob("*.ckpt")) == ["preempted-step=3.ckpt", "step=2.ckpt"]
    assert not any(problems(one) for one in tmp_path.glob("*.ckpt"))
    assert keeper.best_model_path == str(tmp_path / "step=2.ckpt")


def test_a_save_beside_training_of_the_same_step_is_the_last_one(tmp_path: Path) -> None:
    """The same state would be written twice while the machine is being taken away."""
    keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1, save_async=True)
    _, trainer, _ = run(tmp_path, told=Opened(4, Gate()), callbacks=[keeper], enable_checkpointing=True)
    assert trainer.preempted_checkpoint == str(tmp_path / "step=2.ckpt")
    assert [one.name for one in tmp_path.glob("*.ckpt")] == ["step=2.ckpt"]


@pytest.mark.parametrize("is_known", [True, False], ids=["known-at-once", "known-at-the-end"])
def test_after_a_save_that_failed_beside_training_the_last_one_is_still_made(
    is_known: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The work since the last good checkpoint would be lost for an error that is over."""

    class Failed(Opened):
        """The failure is known before the step ends in which the run is told to end."""

        def _look(self, hook: str) -> None:
            super()._look(hook)
            if is_known and self.fired == self.number:
                for thread in threading.enumerate():
                    if thread.name == "drivetrain-save":
                        thread.join(30)

    class Emptied(Gate):
        """The first of the files does not fit."""

        def __call__(self, file: Any, data: Any) -> None:
            self.fails = "step=2" in file.name
            super().__call__(file, data)

    keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1, save_async=True)
    _, trainer, _ = run(tmp_path, told=Failed(6, Emptied()), callbacks=[keeper], enable_checkpointing=True)
    assert trainer.was_preempted and "step 2 was not saved" in caplog.text
    assert [one.name for one in tmp_path.glob("*.ckpt")] == ["preempted-step=3.ckpt"]
    assert keeper.best_model_path == "" and keeper.last_model_path == trainer.preempted_checkpoint


def test_a_save_of_ones_own_that_failed_does_not_stop_the_last_one(tmp_path: Path) -> None:
    """Likewise, where no `ModelCheckpoint` has waited for it."""

    class Own(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 2:
                saves = trainer.run.fabric.saves
                saves.write = gate = Gate(is_open=True, fails=True)
                trainer.save_checkpoint(tmp_path / "own", wait=False)
                assert gate.is_reached.wait(30)
                saves.write = Gate(is_open=True)

    _, trainer, _ = run(tmp_path, told=Told("batch", 6), callbacks=[Own()])
    assert trainer.preempted_checkpoint == str(tmp_path / "preempted-step=3.ckpt")
    assert not problems(tmp_path / "preempted-step=3.ckpt") and not (tmp_path / "own").exists()


@pytest.mark.parametrize(("hook", "number"), [("batch", 5), ("validation", 2)])
def test_an_average_of_the_weights_goes_on_with_them(hook: str, number: int, tmp_path: Path) -> None:
    """The average would be trained on from there, where the run is left while it is in the module."""
    check_goes_on(tmp_path, Told(hook, number), callbacks=lambda: [EMA(0.5)])


def test_an_average_of_the_last_epochs_is_not_finished_by_a_run_that_is_told_to_end(tmp_path: Path) -> None:
    """All of the data would be read once more for its batch statistics, while the machine is being taken away."""

    class Counted(StochasticWeightAveraging):
        num_read = 0

        def forward_of(self, batch: Any) -> Any:
            self.num_read += 1
            return super().forward_of(batch)

    def start(*told: Told, **options: Any) -> Any:
        seed_everything(3, verbose=False)
        average, module = Counted(0.05, swa_epoch_start=1), Headed(has_batch_norm=True)
        trainer = Trainer(**QUIET, default_root_dir=tmp_path, max_epochs=3, callbacks=[average, *told])
        with contextlib.suppress(SystemExit):
            trainer.fit(module, loader(24, shuffle=True), **options)
        return average.num_read, weights(module), trainer

    num_read, whole, _ = start()
    assert num_read == 6
    num_read, _, first = start(Told("batch", 14))
    assert first.was_preempted and num_read == 0
    num_read, resumed, _ = start(ckpt_path="last")
    assert num_read == 6 and are_equal(resumed, whole)


@pytest.mark.parametrize("number", [7, 8, 14])
def test_the_row_of_a_window_that_was_carried_holds_all_of_it(tmp_path: Path, number: int) -> None:
    """What was logged in the part of a window before the end of the epoch would be lost."""
    logger = ListLogger()
    options: dict[str, Any] = {"accumulate_grad_batches": 3, "remainder": "carry", "log_every_n_steps": 1}
    path = None
    for told in ([Told("batch", number)], []):
        trainer = Trainer(
            **{**QUIET, **options, "logger": logger, "default_root_dir": tmp_path}, max_epochs=3, callbacks=told
        )
        try:
            trainer.fit(LogsBatches(), loader(28), ckpt_path=path)
        except SystemExit:
            path = trainer.preempted_checkpoint
            assert read_manifest(Path(path)).step == trainer.global_step
    rows = [row for _, row in logger.rows if "mean" in row]
    assert path is not None and [row["sum"] for row in rows] == [sum(indices) for indices in MICRO_BATCHES]
