"""A run that is started again finds by itself where it was."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from drivetrain import Callback, CheckpointError, ConfigError, CSVLogger, ModelCheckpoint, Trainer, seed_everything
from drivetrain.checkpoint.manifest import MANIFEST_NAME, read_manifest
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, loader, weights


def keeper(root: Path | None, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(root, **{"filename": "{step}", "every_n_train_steps": 1, "save_top_k": -1, **options})


def run(root: Path, *, steps: int, callback: ModelCheckpoint | None = None, **options: Any) -> tuple[Any, Trainer]:
    """Train for some steps of six in an epoch, with a checkpoint after each."""
    seed_everything(1, verbose=False)
    module = Classifier()
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None},
        callbacks=callback or keeper(root),
        max_steps=steps,
        default_root_dir=root,
    )
    trainer.fit(module, loader(24, shuffle=True), **options)
    return module, trainer


def flip(checkpoint: Path) -> None:
    path = checkpoint / "state.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_run_that_is_started_again_equals_one_that_was_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill the run would begin anew, or somebody would have to look for the path."""
    whole, _ = run(tmp_path / "whole", steps=8)
    run(tmp_path / "again", steps=3, resume="auto")
    assert capsys.readouterr().out == (
        f"resume='auto': no whole checkpoint in {tmp_path / 'again'}, begins from the start.\n"
    )
    module, trainer = run(tmp_path / "again", steps=8, resume="auto")
    assert capsys.readouterr().out == f"resume='auto': goes on from {tmp_path / 'again' / 'step=3.ckpt'} (step 3).\n"
    assert trainer.global_step == 8 and are_equal(weights(module), weights(whole))


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    """A run that loads what is damaged, or that does not start at all although a good checkpoint is there."""
    whole, _ = run(tmp_path / "whole", steps=8)
    root = tmp_path / "again"
    run(root, steps=5)
    flip(root / "step=5.ckpt")
    (root / "step=4.ckpt" / "rank_0.pt").unlink()
    with pytest.warns(UserWarning) as caught:
        module, _ = run(root, steps=8, resume="auto")
    (text,) = [str(one.message) for one in caught if "passed over" in str(one.message)]
    assert text.splitlines() == [
        f"{root / 'step=3.ckpt'} is used; passed over:",
        f"    {root / 'step=5.ckpt'}: state.pt has other content than was written",
        f"    {root / 'step=4.ckpt'}: rank_0.pt is missing",
    ]
    assert are_equal(weights(module), weights(whole))


def test_a_run_of_which_every_checkpoint_is_damaged_begins_anew_and_keeps_them(tmp_path: Path) -> None:
    """A run that crashes at each start, or that deletes what could still be saved by hand."""
    run(tmp_path, steps=1)
    flip(tmp_path / "step=1.ckpt")
    with pytest.warns(UserWarning, match="No checkpoint is used; passed over:"):
        _, trainer = run(tmp_path, steps=1, resume="auto")
    assert trainer.global_step == 1
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["step=1-v1.ckpt", "step=1.ckpt"]


def test_weights_alone_are_passed_over(tmp_path: Path) -> None:
    """A run would stop with an error because another callback has exported its weights there."""
    run(tmp_path, steps=1)
    run(tmp_path, steps=3, callback=keeper(tmp_path, save_weights_only=True, filename="weights-{step}"))
    with pytest.warns(UserWarning, match="step=3.ckpt: it holds weights alone"):
        _, trainer = run(tmp_path, steps=2, resume="auto")
    assert trainer.global_step == 2


def test_a_version_that_the_logger_chose_is_found_again(tmp_path: Path) -> None:
    """Each start has a new directory, in which there is nothing to go on from."""

    def start(steps: int, version: int | None = None) -> Trainer:
        trainer = Trainer(
            **{**QUIET, "enable_checkpointing": None, "logger": CSVLogger(tmp_path, version=version)},
            callbacks=keeper(None),
            max_steps=steps,
            default_root_dir=tmp_path,
        )
        trainer.fit(Classifier(), loader(24), resume="auto")
        return trainer

    start(2)
    trainer = start(4)
    assert trainer.logger is not None and trainer.logger.version == 0
    folder = tmp_path / "drivetrain_logs" / "version_0" / "checkpoints"
    assert sorted(path.name for path in folder.glob("*.ckpt")) == [f"step={step}.ckpt" for step in (1, 2, 3, 4)]
    assert read_manifest(folder / "step=3.ckpt").step == 3
    start(1, version=7)  # another experiment: it must not go on from the others
    assert (tmp_path / "drivetrain_logs" / "version_7" / "checkpoints" / "step=1.ckpt").is_dir()


def test_a_path_of_a_checkpoint_or_of_a_folder_can_be_given(tmp_path: Path) -> None:
    """The newest one of another run could only be named by a step that somebody has to look up."""
    run(tmp_path / "a", steps=3)
    for path in (tmp_path / "a" / "step=2.ckpt", str(tmp_path / "a")):
        _, trainer = run(tmp_path / "b", steps=4, resume=path)
        assert trainer.global_step == 4
        shutil.rmtree(tmp_path / "b")
    flip(tmp_path / "a" / "step=3.ckpt")
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path / "b", steps=4, resume=tmp_path / "a" / "step=3.ckpt")
    assert caught.value.code == "checkpoint-corrupt"
    with pytest.warns(UserWarning, match="step=2.ckpt is used; passed over:"):
        run(tmp_path / "b", steps=4, resume=tmp_path / "a")


def test_a_path_where_nothing_is_does_not_begin_anew(tmp_path: Path) -> None:
    """A typing error in the path would cost a whole run."""
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, steps=1, resume=tmp_path / "nothing")
    assert caught.value.code == "checkpoint-missing"


def test_the_last_one_is_found_by_a_process_that_did_not_write_it(tmp_path: Path) -> None:
    """ckpt_path="last" would only work inside of the run that has just ended."""
    run(tmp_path, steps=3)
    flip(tmp_path / "step=3.ckpt")
    with pytest.warns(UserWarning, match="step=2.ckpt is used; passed over:"):
        _, trainer = run(tmp_path, steps=4, ckpt_path="last")
    assert trainer.global_step == 4
    shutil.rmtree(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, steps=4, ckpt_path="last")
    assert caught.value.code == "checkpoint-missing"


def test_the_last_one_is_that_of_this_trainer(tmp_path: Path) -> None:
    """Where an earlier and longer run has saved to the same folder, its weights would be evaluated."""
    run(tmp_path, steps=5)
    module, trainer = run(tmp_path, steps=2, callback=keeper(tmp_path, filename="short-{step}"))
    own = weights(module)
    trainer.test(module, loader(8), ckpt_path="last", verbose=False)
    assert are_equal(weights(module), own)


def test_both_ways_to_say_it_at_once_are_refused(tmp_path: Path) -> None:
    """One of the two would be passed over without a word."""
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, steps=1, resume="auto", ckpt_path=tmp_path)
    assert caught.value.code == "resume-twice"


def test_a_checkpoint_that_was_moved_aside_is_found(tmp_path: Path) -> None:
    """A kill between the two renames of a save would lose the newest checkpoint."""
    run(tmp_path, steps=2)
    from drivetrain.base.temporary_names import temporary_sibling

    aside = temporary_sibling(tmp_path / "step=2.ckpt", "old")
    (tmp_path / "step=2.ckpt").rename(aside)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, trainer = run(tmp_path, steps=3, resume="auto")
    assert trainer.global_step == 3 and (tmp_path / "step=1.ckpt" / MANIFEST_NAME).exists()


def test_a_trial_run_begins_from_the_start(tmp_path: Path) -> None:
    """fast_dev_run would do nothing, because the checkpoint is past its one step."""
    run(tmp_path, steps=3)
    trainer = Trainer(**QUIET, fast_dev_run=True, default_root_dir=tmp_path)
    trainer.fit(Classifier(), loader(8), resume="auto")
    assert trainer.global_step == 1


def test_the_manifest_says_what_a_run_is_listed_by(tmp_path: Path) -> None:
    """`drivetrain checkpoint list` could not say how good a checkpoint is without loading it."""
    seed_everything(1, verbose=False)
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None}, callbacks=ModelCheckpoint(tmp_path, monitor="val_loss"), max_epochs=2
    )
    trainer.fit(Classifier(), loader(8), loader(8))
    extra = read_manifest(Path(trainer.checkpoint_callback.last_model_path)).extra
    assert extra["epoch"] >= 1 and extra["weights_only"] is False
    assert extra["monitored"] == {"val_loss": float(trainer.callback_metrics["val_loss"])}


class Validations(Callback):
    """Notes after which steps validation ran; fails before one of them."""

    def __init__(self, fails_at: int = -1) -> None:
        self.steps: list[int] = []
        self.fails_at = fails_at

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.fails_at:
            raise RuntimeError("before it was made")
        self.steps.append(trainer.global_step)


@pytest.mark.parametrize(
    ("interval", "fails_at"), [(2, 2), (2, 4), (2, 6), (0.5, 3), (0.5, 9), ("2 steps", 4), ("2 steps", 12)]
)
def test_a_validation_that_a_failure_has_prevented_is_made_up_for(tmp_path: Path, interval: Any, fails_at: int) -> None:
    """A schedule that follows what validation reports, or an early stop, would take another turn after a failure."""

    def train(validations: Validations, **options: Any) -> None:
        trainer = Trainer(
            **{**QUIET, "enable_checkpointing": None}, callbacks=[validations, keeper(tmp_path)], max_epochs=2,
            default_root_dir=tmp_path, val_check_interval=interval, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(Classifier(), loader(24), loader(8), **options)

    with pytest.raises(RuntimeError, match="before it was made"):
        train(failed := Validations(fails_at))
    train(resumed := Validations(), resume="auto")
    train(whole := Validations())
    assert [*failed.steps, *resumed.steps] == whole.steps


@pytest.mark.parametrize("is_first", [True, False], ids=["saved-before-other-hooks", "saved-after-all-hooks"])
def test_the_beginning_of_an_epoch_is_heard_again_only_if_its_end_is(is_first: bool, tmp_path: Path) -> None:
    """A counter of epochs would be one too high; or an end would come for which nothing was prepared."""

    class Heard(Callback):
        def __init__(self) -> None:
            self.events: list[tuple[str, int]] = []

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.events.append(("start", trainer.current_epoch))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.events.append(("end", trainer.current_epoch))

    class Saved(Callback):
        """At the end of the first epoch, before or after the other's hook."""

        runs_last = not is_first

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "saved.ckpt")

    def start(epochs: int, path: Path | None = None) -> list[tuple[str, int]]:
        heard = Heard()
        trainer = Trainer(**QUIET, max_epochs=epochs, callbacks=[Saved(), heard], default_root_dir=tmp_path)
        trainer.fit(Classifier(), loader(8), ckpt_path=path)
        return heard.events

    start(1)
    again = [("start", 0), ("end", 0)] if is_first else []
    assert start(2, tmp_path / "saved.ckpt") == [*again, ("start", 1), ("end", 1)]
