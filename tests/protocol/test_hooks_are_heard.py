"""Hooks that scripts override, each by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from drivetrain import Callback, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, loader

HEARD: list[tuple[str, str]] = []


def noted(kind: str, name: str) -> Callable[..., None]:
    """A hook that notes that it was called."""
    return lambda self, *args: HEARD.append((kind, name))


class Listener(Callback):
    """Hears of evaluations."""

    on_test_start = noted("callback", "on_test_start")
    on_test_epoch_start = noted("callback", "on_test_epoch_start")
    on_test_batch_start = noted("callback", "on_test_batch_start")
    on_test_batch_end = noted("callback", "on_test_batch_end")
    on_test_epoch_end = noted("callback", "on_test_epoch_end")
    on_test_end = noted("callback", "on_test_end")
    on_predict_start = noted("callback", "on_predict_start")
    on_predict_epoch_start = noted("callback", "on_predict_epoch_start")
    on_predict_batch_start = noted("callback", "on_predict_batch_start")
    on_predict_batch_end = noted("callback", "on_predict_batch_end")
    on_predict_epoch_end = noted("callback", "on_predict_epoch_end")
    on_predict_end = noted("callback", "on_predict_end")
    setup = noted("callback", "setup")
    teardown = noted("callback", "teardown")


class Listening(Classifier):
    """Hears of evaluations, and brings its loaders."""

    on_test_start = noted("module", "on_test_start")
    on_test_epoch_start = noted("module", "on_test_epoch_start")
    on_test_batch_start = noted("module", "on_test_batch_start")
    on_test_batch_end = noted("module", "on_test_batch_end")
    on_test_epoch_end = noted("module", "on_test_epoch_end")
    on_test_end = noted("module", "on_test_end")
    on_predict_start = noted("module", "on_predict_start")
    on_predict_epoch_start = noted("module", "on_predict_epoch_start")
    on_predict_batch_start = noted("module", "on_predict_batch_start")
    on_predict_batch_end = noted("module", "on_predict_batch_end")
    on_predict_epoch_end = noted("module", "on_predict_epoch_end")
    on_predict_end = noted("module", "on_predict_end")
    prepare_data = noted("module", "prepare_data")
    setup = noted("module", "setup")
    teardown = noted("module", "teardown")

    def test_dataloader(self) -> Any:
        return loader(4)

    def predict_dataloader(self) -> Any:
        return loader(4)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        HEARD.append(("module", "state_dict"))
        return super().state_dict(*args, **options)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        HEARD.append(("module", "load_state_dict"))
        return super().load_state_dict(*args, **options)


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_an_evaluation_is_heard_by_the_hooks_of_its_stage(stage: str) -> None:
    """A hook that a script overrides would never be called, or `setup` twice."""
    HEARD.clear()
    getattr(Trainer(**QUIET, callbacks=[Listener()]), stage)(Listening())
    parts = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
    named = [f"on_{stage}_{part}" for part in parts]
    for kind in ("callback", "module"):
        heard = [name for one, name in HEARD if one == kind and name not in ("prepare_data", "state_dict")]
        assert heard == ["setup", *named, "teardown"]
    assert HEARD[0] == ("module", "prepare_data")


def test_weights_are_read_and_put_back_by_the_modules_own_methods(tmp_path: Any) -> None:
    """A module that keeps something else in its state would lose it."""
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.fit(Listening(), loader(8))
    HEARD.clear()
    trainer.save_checkpoint(tmp_path / "ck")
    assert ("module", "state_dict") in HEARD
    Trainer(**QUIET, max_epochs=2).fit(Listening(), loader(8), ckpt_path=tmp_path / "ck")
    assert ("module", "load_state_dict") in HEARD
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(("stage", "event"), [("validate", "validation"), ("test", "test"), ("predict", "predict")])
def test_a_module_goes_into_an_evaluation_as_it_says(stage: str, event: str) -> None:
    """Dropout that is to stay on while it is evaluated would be off, or layers be left in eval mode."""

    class Stays(Classifier):
        def note(self, *args: Any) -> None:
            seen.append((self.training, self.net.training))

        def evaluate(self) -> None:
            seen.append("eval")
            self.net.eval()

        def train_again(self) -> None:
            seen.append(("train", self.net.training))

    for name, method in (("eval", Stays.evaluate), ("train", Stays.train_again)):
        setattr(Stays, f"on_{event}_model_{name}", method)
    setattr(Stays, f"{event}_step", Stays.note)
    seen: list[Any] = []
    getattr(Trainer(**QUIET), stage)(Stays(), loader(4))
    assert seen == ["eval", (True, False), ("train", True)]


def test_gradients_are_a_modules_own_before_a_validation() -> None:
    """A script's hook would never be called."""

    class Zeroes(Classifier):
        def on_validation_model_zero_grad(self) -> None:
            HEARD.append(("module", "zero"))

    HEARD.clear()
    Trainer(**QUIET).validate(Zeroes(), loader(4), verbose=False)
    assert HEARD == [("module", "zero")]
