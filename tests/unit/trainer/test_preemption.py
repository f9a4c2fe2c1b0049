"""A run that is told to end saves, and the run that goes on from there is the one that was not told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import Callback, ConfigError, InterruptedExit, ModelCheckpoint, PreemptedExit, Trainer, seed_everything
from drivetrain.launch.stop_signals import STOP_SIGNALS
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights


@pytest.fixture(autouse=True)
def handlers_as_found() -> Iterator[None]:
    """The process of the tests goes on."""
    found = {sig: signal.getsignal(sig) for sig in STOP_SIGNALS}
    yield
    for sig, old in found.items():
        signal.signal(sig, old)


class Stochastic(Classifier):
    """Draws random numbers in training and validation; momentum and a schedule have a memory."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx, dataloader_idx)
        self.log("noise", torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Told(Callback):
    """Sends this process a signal when a hook fires for the n-th time."""

    def __init__(self, hook: str, number: int, *signals: signal.Signals) -> None:
        self.hook, self.number, self.signals = hook, number, signals or (signal.SIGTERM,)
        self.fired = 0

    def _look(self, hook: str) -> None:
        if hook == self.hook:
            self.fired += 1
            if self.fired == self.number:
                for sig in self.signals:
                    os.kill(os.getpid(), sig)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._look("start")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._look("batch")

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self._look("step")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._look("validation")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._look("epoch")


OPTIONS: dict[str, Any] = {
    **QUIET, "max_epochs": 2, "accumulate_grad_batches": 2, "num_sanity_val_steps": 0, "log_every_n_steps": 1,
}  # fmt: skip


def run(
    root: Path,
    *,
    told: Told | None = None,
    callbacks: Any = (),
    ckpt_path: Any = None,
    resume: Any = None,
    **options: Any,
) -> Any:
    """Train two epochs of 5 steps: the module, the trainer and the rows of the logger."""
    logger, module = ListLogger(), Stochastic()
    callbacks = [*(callbacks() if callable(callbacks) else callbacks), *([told] if told is not None else [])]
    trainer = Trainer(**{**OPTIONS, "logger": logger, "default_root_dir": root, **options}, callbacks=callbacks)
    try:
        trainer.fit(module, loader(36, shuffle=True), loader(16), ckpt_path=ckpt_path, resume=resume)
    except PreemptedExit:
        assert trainer.was_preempted and trainer.state.status == "preempted"
    return module, trainer, [row for row in logger.rows if row[0] is not None]


def check_goes_on(root: Path, told: Told, **options: Any) -> Any:
    """Told to end and resumed is not told; the trainer of the part that was told."""
    seed_everything(3, verbose=False)
    whole, whole_trainer, whole_rows = run(root, **options)
    seed_everything(3, verbose=False)
    _, first, first_rows = run(root, told=told, **options)
    assert first.was_preempted
    seed_everything(4, verbose=False)
    resumed, trainer, rows = run(root, ckpt_path=first.preempted_checkpoint, **options)
    assert not trainer.was_preempted and trainer.state.finished
    assert are_equal(weights(whole), weights(resumed))
    assert trainer.progress == whole_trainer.progress
    names = {"val_loss", "noise"}
    found = [(step, {name: row[name] for name in names & row.keys()}) for step, row in [*first_rows, *rows]]
    expected = [(step, {name: row[name] for name in names & row.keys()}) for step, row in whole_rows]
    assert found == expected
    return first


@pytest.mark.parametrize(("number", "step"), [(1, 1), (2, 1), (5, 3), (9, 5), (10, 6)])
def test_a_run_that_is_told_in_a_batch_and_goes_on_is_the_one_that_was_not_told(
    number: int, step: int, tmp_path: Path
) -> None:
    """A preemption would repeat or lose batches, a validation, the shuffle, the dropout or the schedule."""
    first = check_goes_on(tmp_path, Told("batch", number))
    assert (first.preempted_by, first.global_step) == ("SIGTERM", step)
    assert Path(first.preempted_checkpoint) == tmp_path / f"preempted-step={step}.ckpt"
    assert (tmp_path / "latest").exists()


@pytest.mark.parametrize(("hook", "number"), [("validation", 1), ("validation", 6), ("epoch", 1), ("start", 1)])
def test_it_may_be_told_between_steps(hook: str, number: int, tmp_path: Path) -> None:
    """A long validation would outlast the grace, or a part of one count as a whole; a word at start-up be lost."""
    check_goes_on(tmp_path, Told(hook, number))


def test_a_validation_within_the_epoch_is_owed(tmp_path: Path) -> None:
    """The validation that was due at the step of the preemption would be left out."""
    first = check_goes_on(tmp_path, Told("batch", 4), val_check_interval="2 steps")
    assert first.global_step == 2
    check_goes_on(tmp_path / "later", Told("validation", 2), val_check_interval="2 steps")


def test_after_its_last_step_a_run_owes_its_last_validation(tmp_path: Path) -> None:
    """What ended in its last step would never be validated."""
    first = check_goes_on(tmp_path, Told("batch", 6), max_epochs=-1, max_steps=3)
    assert first.global_step == 3


def test_a_run_that_has_come_to_its_end_is_done(tmp_path: Path) -> None:
    """A finished run would be started again for nothing."""
    _, trainer, _ = run(tmp_path, told=Told("epoch", 2))
    assert not trainer.was_preempted and trainer.state.finished and trainer.global_step == 10


def test_a_wish_to_stop_goes_before(tmp_path: Path) -> None:
    """Early stopping would be forgotten by the run that goes on."""

    class StopAt(Callback):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.global_step == 3

    _, trainer, _ = run(tmp_path, told=Told("batch", 6), callbacks=[StopAt()])
    assert not trainer.was_preempted and trainer.global_step == 3


def test_signals_that_are_repeated_are_one(tmp_path: Path) -> None:
    """A scheduler that says it twice would kill what is being saved."""
    _, trainer, _ = run(tmp_path, told=Told("batch", 3, signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM))
    os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.was_preempted and trainer.global_step == 2
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["preempted-step=2.ckpt"]


def test_ctrl_c_can_be_caught_as_ever(tmp_path: Path) -> None:
    """A notebook would end with its training, or could not use the model."""
    trainer = Trainer(**OPTIONS, default_root_dir=tmp_path, callbacks=[Told("batch", 3, signal.SIGINT)])
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(Stochastic(), loader(16))
    assert isinstance(caught.value, InterruptedExit) and caught.value.code == 75
    assert caught.value.checkpoint == trainer.preempted_checkpoint == str(tmp_path / "preempted-step=2.ckpt")
    trainer.fit(Stochastic(), loader(16))
    assert not trainer.was_preempted and trainer.state.finished


@pytest.mark.parametrize("save_top_k", [0, 1, 2])
def test_preemptions_leave_no_more_than_what_is_kept(save_top_k: int, tmp_path: Path) -> None:
    """Each preemption would leave a checkpoint, until the disk is full."""
    path = None
    for _ in range(4):
        keeper = ModelCheckpoint(tmp_path, save_top_k=save_top_k, save_weights_only=True, every_n_train_steps=1)
        told = Told("batch", 3)
        _, trainer, _ = run(tmp_path, told=told, callbacks=[keeper], enable_checkpointing=True, ckpt_path=path)
        path = trainer.preempted_checkpoint
        assert keeper.last_model_path == path and Path(path).is_dir()
        assert len(list(tmp_path.glob("*.ckpt"))) <= save_top_k + 1
    assert trainer.global_step == 8


def test_without_a_keeper_the_checkpoint_that_a_run_went_on_from_is_replaced(tmp_path: Path) -> None:
    """Likewise where no callback keeps checkpoints; `"last"` would not find it."""
    path = None
    for number in range(1, 4):
        _, trainer, _ = run(tmp_path, told=Told("batch", 1), ckpt_path=path)
        path = "last"
        assert [one.name for one in tmp_path.glob("*.ckpt")] == [f"preempted-step={number}.ckpt"]
    assert trainer.global_step == 3


def test_max_time_ends_a_run_after_a_step(tmp_path: Path) -> None:
    """The scheduler would end the run first."""
    _, trainer = fit(max_time=timedelta(0))
    assert trainer.global_step == 1 and not trainer.was_preempted
    _, trainer = fit(max_time={"hours": 1})
    assert trainer.global_step == 6
    with pytest.raises(ConfigError, match="timer"):
        Trainer(**QUIET, max_time="soon")


def test_manual_steps_are_saved_between_windows(tmp_path: Path) -> None:
    """A checkpoint would lack the gradients of a window that is half done."""

    class Manual(Stochastic):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            with self.window(self.optimizers(), size=3) as window:
                window.backward(self.loss_of(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train(told: Told | None, ckpt_path: Any = None) -> Any:
        module = Manual()
        trainer = Trainer(
            **{**QUIET, "max_epochs": 2, "default_root_dir": tmp_path, "callbacks": [told] if told is not None else []}
        )
        try:
            trainer.fit(module, loader(28, shuffle=True), ckpt_path=ckpt_path)
        except PreemptedExit:
            assert (trainer.global_step, trainer.micro_step) == (2, 6)
        return module, trainer

    seed_everything(3, verbose=False)
    whole, _ = train(None)
    seed_everything(3, verbose=False)
    _, first = train(Told("batch", 4))
    assert first.was_preempted
    resumed, _ = train(None, first.preempted_checkpoint)
    assert are_equal(weights(whole), weights(resumed))
