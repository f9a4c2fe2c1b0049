"""Steps take as much of their batch's place as they like."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import Callback, ConfigError, Module, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Short(Module):
    """All steps take the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Classifier()

    def training_step(self, batch: Any) -> Any:
        return self.inner.loss_of(batch)

    def validation_step(self, batch: Any) -> None:
        self.log("val_loss", self.inner.loss_of(batch))

    def test_step(self, batch: Any) -> None:
        self.log("test_loss", self.inner.loss_of(batch))

    def predict_step(self, batch: Any) -> Any:
        return self.inner.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_steps_without_the_number_of_the_batch_run_in_every_stage() -> None:
    """A script that runs elsewhere would fail with a TypeError."""
    short, trainer = fit(Short(), val_data=[loader(8), loader(8)])
    full, _ = fit(Classifier())
    assert are_equal({f"inner.{name}": value for name, value in weights(full).items()}, weights(short))
    assert set(trainer.callback_metrics) == {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"}
    assert trainer.test(short, loader(8), verbose=False)[0].keys() == {"test_loss"}
    assert len(trainer.predict(short, loader(8))) == 2


def test_a_step_that_wants_the_number_of_its_loader_gets_it_with_one_loader() -> None:
    """It would run with two loaders alone."""
    seen: list[int] = []

    class Named(Classifier):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            seen.append(dataloader_idx)

    trainer = Trainer(**QUIET)
    trainer.validate(Named(), loader(4), verbose=False)
    trainer.validate(Named(), [loader(4), loader(4)], verbose=False)
    assert seen == [0, 0, 1]


def test_a_step_that_needs_more_is_refused_before_anything_runs() -> None:
    """The data would be loaded first, and the sanity check run."""

    class Former(Classifier):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            return self.loss_of(batch)

    module = Former()
    with pytest.raises(ConfigError, match=r"Former.training_step\(batch") as caught:
        fit(module, val_data=loader(8))
    assert caught.value.code == "step-signature" and module.seen == []


def test_each_stage_counts_the_batches_of_its_own_limit() -> None:
    """A bar of the test would end where validation is limited."""
    found: dict[str, Any] = {}

    class Count(Callback):
        def on_test_start(self, trainer: Any, pl_module: Any) -> None:
            found["test"] = trainer.num_test_batches, trainer.num_val_batches

        def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
            found["predict"] = trainer.num_predict_batches, trainer.num_test_batches

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found["fit"] = trainer.num_val_batches, trainer.num_sanity_val_batches, trainer.num_test_batches

    trainer = Trainer(
        **QUIET, max_epochs=1, limit_val_batches=5, limit_test_batches=3, limit_predict_batches=0.5, callbacks=[Count()]
    )
    trainer.fit(Classifier(), loader(), loader())
    trainer.test(Classifier(), [loader(), loader(8)], verbose=False)
    trainer.predict(Classifier(), loader())
    assert found == {"fit": ([5], [2], []), "test": ([3, 2], []), "predict": ([3], [])}


@pytest.mark.parametrize("configured", [[], ([], [])])
def test_an_empty_list_of_optimizers_trains_nothing_and_says_so(configured: Any) -> None:
    """A run of days would leave the weights as they were, without a word."""

    class Empty(Classifier):
        def configure_optimizers(self) -> Any:
            return configured

    with pytest.warns(UserWarning, match="nothing will be trained"):
        fit(Empty(), max_epochs=0)


def test_hooks_that_want_the_number_of_the_loader_get_it_with_one_loader() -> None:
    """A callback of a script that runs elsewhere would fail with a TypeError."""
    seen: list[tuple[str, int]] = []

    class Look(Callback):
        def on_validation_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int
        ) -> None:
            seen.append(("start", dataloader_idx))

        def on_validation_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
        ) -> None:
            seen.append(("end", dataloader_idx))

    trainer = Trainer(**QUIET, callbacks=[Look()])
    trainer.validate(Classifier(), loader(4), verbose=False)
    trainer.validate(Classifier(), [loader(4), loader(4)], verbose=False)
    assert seen == [("start", 0), ("end", 0), ("start", 0), ("end", 0), ("start", 1), ("end", 1)]
