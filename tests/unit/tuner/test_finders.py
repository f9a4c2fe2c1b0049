"""Searches as callbacks of a run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import BatchSizeFinder, Callback, ConfigError, DataModule, LearningRateFinder, Tuner
from drivetrain.testing.fixtures import make_dataset
from tests.unit.trainer.runs import Classifier, are_equal, loader, weights
from tests.unit.tuner.test_lr_find import Manual, Rated, quiet
from tests.unit.tuner.test_scale_batch_size import memory_for

SWEEP: dict[str, Any] = {"min_lr": 1e-4, "num_training_steps": 30}


class FineTuned(LearningRateFinder):
    """Searches at the beginning of chosen epochs."""

    def __init__(self, milestones: tuple[int, ...], **options: Any) -> None:
        super().__init__(**options)
        self.milestones = milestones
        self.rates: list[float] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        return

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch in self.milestones:
            self.lr_find(trainer, pl_module)
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


class Sized(DataModule):
    """Its loaders have the size of an attribute; it may be asked for them only while it is set up."""

    def __init__(self) -> None:
        self.batch_size = 4
        self.made: list[tuple[str, int]] = []
        self.calls: list[str] = []

    def setup(self, stage: str) -> None:
        self.calls.append("setup")

    def teardown(self, stage: str) -> None:
        self.calls.append("teardown")

    def train_dataloader(self) -> Any:
        self.made.append(("train", self.batch_size))
        return torch.utils.data.DataLoader(make_dataset(200), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        self.made.append(("val", self.batch_size))
        return loader(8, batch_size=self.batch_size)


def train(module: Any, *callbacks: Callback, data: Any = None, **options: Any) -> Any:
    torch.manual_seed(5)
    trainer = quiet(callbacks=list(callbacks), **options)
    trainer.fit(module, data if data is not None else loader(shuffle=True), loader(8))
    return trainer


def test_training_is_the_one_with_the_rate_that_is_found() -> None:
    """The optimizer or its schedule would have the rate of before, or be those of the search."""
    by_hand, trainer = Rated(dropout=0.5), quiet()
    torch.manual_seed(5)
    found = Tuner(trainer).lr_find(by_hand, loader(shuffle=True), min_lr=1e-4, num_training=30)
    assert found is not None
    by_hand.learning_rate = found.suggestion()
    train(by_hand)
    module, finder = Rated(dropout=0.5), LearningRateFinder(**SWEEP)
    trainer = train(module, finder)
    assert finder.optimal_lr == found and module.learning_rate == by_hand.learning_rate != 0.1
    assert are_equal(weights(module), weights(by_hand))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(module.learning_rate * 0.25)


@pytest.mark.parametrize(
    "finder", [LearningRateFinder(**SWEEP, update_attr=False), FineTuned((0, 1), update_attr=False)]
)
def test_a_search_that_only_looks_changes_nothing(finder: Any) -> None:
    """Weights, the random state, counters or the order of the data would be others after it."""

    class Own(Rated):
        """Its own backward has to be there after a search, too."""

        def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            super().backward(2.0 * loss, *args, **kwargs)

        def setup(self, stage: str) -> None:
            self.num_setups = getattr(self, "num_setups", 0) + 1

    alone, module = Own(dropout=0.5), Own(dropout=0.5)
    expected = train(alone, max_epochs=3)
    trainer = train(module, finder, max_epochs=3)
    assert finder.optimal_lr is not None and len(finder.optimal_lr.losses) > 10
    assert are_equal(weights(module), weights(alone)) and module.learning_rate == 0.1 and module.num_setups == 1
    assert trainer.progress == expected.progress
    assert are_equal(trainer.callback_metrics, expected.callback_metrics)


def test_a_search_at_milestones_moves_the_rates_of_the_optimizer() -> None:
    """A finder that fine-tunes would find rates with which nothing is trained, or the schedule would undo them."""

    class Scheduled(Rated):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)]

    module, finder = Scheduled(), FineTuned((0, 1), **SWEEP)
    trainer = train(module, finder)
    first, second = finder.rates
    assert second == module.learning_rate
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(second * 0.5)
    assert trainer.lr_scheduler_configs[0].scheduler.base_lrs == pytest.approx([second / 0.5])
    assert first > 0 and trainer.global_step == 12


def test_a_run_that_goes_on_does_not_search(tmp_path: Path) -> None:
    """It would begin with another rate than that of the run that it goes on with."""
    whole = Rated(dropout=0.5)
    train(whole, LearningRateFinder(**SWEEP))
    first = Rated(dropout=0.5)
    train(first, LearningRateFinder(**SWEEP), max_epochs=1).save_checkpoint(tmp_path / "ck")
    again, finder = Rated(dropout=0.5), LearningRateFinder(**SWEEP)
    before = finder.optimal_lr
    quiet(callbacks=[finder]).fit(again, loader(shuffle=True), loader(8), ckpt_path=tmp_path / "ck")
    assert before is None and finder.optimal_lr is not None and again.learning_rate == first.learning_rate
    assert are_equal(weights(again), weights(whole))


def test_a_signal_in_a_search_is_for_the_run(tmp_path: Path) -> None:
    """A run that is told to end would forget it, or save the copy of the search."""

    class Told(FineTuned):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            signal.raise_signal(signal.SIGUSR1)
            super().on_train_epoch_start(trainer, pl_module)
            assert trainer.run.fabric.stop_signals.is_listening

    finder = Told((0,), update_attr=False, num_training_steps=12)
    with pytest.raises(SystemExit):
        train(Rated(), finder, default_root_dir=tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["latest", "preempted-step=1.ckpt"]
    assert finder.optimal_lr is not None and len(finder.optimal_lr.losses) == 12


def test_the_largest_batch_that_fits_is_trained_with() -> None:
    """The loaders would keep the size that they had; or the data module be taken down by a search."""
    data, finder = Sized(), BatchSizeFinder(init_val=8, steps_per_trial=1, mode="binsearch", probe=memory_for(50))
    module = Classifier()
    trainer = quiet(callbacks=[finder], max_epochs=1)
    trainer.fit(module, datamodule=data)
    assert finder.optimal_batch_size == data.batch_size == 50
    assert data.made == [("train", 4), ("train", 50), ("val", 50)]
    assert (trainer.global_step, module.count("train"), data.calls) == (4, 4, ["setup", "teardown"])


def test_training_with_a_size_that_was_found_is_the_one_with_that_size() -> None:
    """The search would leave something behind."""

    def run(size: int, *callbacks: Callback) -> Any:
        module, data = Classifier(dropout=0.5), Sized()
        data.batch_size = size
        torch.manual_seed(5)
        quiet(callbacks=list(callbacks)).fit(module, datamodule=data)
        return weights(module)

    finder = BatchSizeFinder(steps_per_trial=2, probe=memory_for(50))
    assert are_equal(run(4, finder), run(32))


def test_a_run_that_goes_on_has_the_size_that_was_found(tmp_path: Path) -> None:
    """Another machine would make other steps of the same training."""

    def run(fits: int, ckpt_path: Path | None = None, **options: Any) -> Any:
        module, data = Classifier(dropout=0.5), Sized()
        finder = BatchSizeFinder(steps_per_trial=1, probe=memory_for(fits))
        trainer = quiet(callbacks=[finder], **options)
        torch.manual_seed(5)
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
        return module, data, trainer

    whole, _, _ = run(50)
    _, _, stopped = run(50, max_epochs=1)
    stopped.save_checkpoint(tmp_path / "ck")
    again, data, _ = run(9, tmp_path / "ck")
    assert data.batch_size == 32 and data.made == [("train", 32), ("val", 32)]
    assert are_equal(weights(again), weights(whole))


def test_the_size_may_be_found_anew_between_epochs() -> None:
    """A finder at milestones would find sizes with which nothing is trained."""

    class Later(BatchSizeFinder):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            return

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                self.scale_batch_size(trainer, pl_module)

    data, module = Sized(), Classifier()
    trainer = quiet(callbacks=[Later(steps_per_trial=1, probe=memory_for(50))])
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 200 // 4 + 7 and data.batch_size == 32


@pytest.mark.parametrize(
    ("finder", "module", "code"),
    [
        (LearningRateFinder(), Classifier, "tuner-attribute"),
        (LearningRateFinder(attr_name="speed"), Rated, "tuner-attribute"),
        (LearningRateFinder(), Manual, "manual-optimization"),
        (BatchSizeFinder(), Classifier, "tuner-attribute"),
    ],
)
def test_what_cannot_be_found_is_refused(finder: Any, module: Any, code: str) -> None:
    """A search would end, and nothing be trained with what it found."""
    with pytest.raises(ConfigError) as refused:
        train(module(), finder)
    assert refused.value.code == code


def test_arguments_are_checked_when_a_finder_is_made() -> None:
    """A misspelt mode would show after the data are there."""
    for kind, options in ((LearningRateFinder, {"mode": "cubic"}), (BatchSizeFinder, {"mode": "cubic"})):
        with pytest.raises(ConfigError, match="cubic"):
            kind(**options)


def test_a_dry_run_searches_nothing() -> None:
    """`fast_dev_run` would take a hundred steps."""
    finder = LearningRateFinder()
    with pytest.warns(UserWarning, match="LearningRateFinder does nothing under fast_dev_run"):
        train(Rated(), finder, fast_dev_run=True)
    assert finder.optimal_lr is None
