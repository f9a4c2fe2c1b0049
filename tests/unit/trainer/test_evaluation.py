"""Validation, test and prediction: what they return, and that they leave the model as it was."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional

from drivetrain import ConfigError, Module, Trainer
from drivetrain.testing.fixtures import make_dataset
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


def mean_loss(module: Classifier, length: int) -> float:
    features, targets = make_dataset(length).tensors
    with torch.no_grad():
        return float(functional.cross_entropy(module.net(features), targets))


@pytest.mark.parametrize(("stage", "name"), [("validate", "val_loss"), ("test", "test_loss")])
@pytest.mark.parametrize("length", [24, 22, 3])
def test_an_evaluation_returns_the_mean_over_all_samples(stage: str, name: str, length: int) -> None:
    """A short last batch would count as a full one."""
    module = Classifier()
    (values,) = getattr(Trainer(**QUIET), stage)(module, loader(length), verbose=False)
    assert values.keys() == {name}
    assert values[name] == pytest.approx(mean_loss(module, length), abs=1e-14)


def test_several_loaders_give_a_result_each() -> None:
    """Two test sets would be mixed."""
    module, trainer = Classifier(), Trainer(**QUIET)
    first, second = trainer.test(module, [loader(8), loader(20)], verbose=False)
    assert first.keys() == {"test_loss/dataloader_idx_0"} and second.keys() == {"test_loss/dataloader_idx_1"}
    assert first["test_loss/dataloader_idx_0"] == pytest.approx(mean_loss(module, 8), abs=1e-14)
    assert second["test_loss/dataloader_idx_1"] == pytest.approx(mean_loss(module, 20), abs=1e-14)
    assert module.seen == [("test", index, 0) for index in range(2)] + [("test", index, 1) for index in range(5)]


def test_predictions_come_back_in_order() -> None:
    """Rows would not fit the samples."""
    module, trainer = Classifier(), Trainer(**QUIET)
    predictions = trainer.predict(module, loader(10))
    assert [len(one) for one in predictions] == [4, 4, 2]
    with torch.no_grad():
        alone = module.net(make_dataset(10).tensors[0])
    assert torch.allclose(torch.cat(predictions), alone, rtol=0, atol=1e-14)


def test_predictions_of_several_loaders_are_lists_of_lists() -> None:
    """It could not be told which loader a prediction is of."""
    module, trainer = Classifier(), Trainer(**QUIET)
    assert [len(one) for one in trainer.predict(module, [loader(8), loader(12)])] == [2, 3]
    assert [len(one) for one in trainer.predict(module, [loader(8)])] == [4, 4], "one loader in a list is one loader"
    assert trainer.predict(module, loader(8), return_predictions=False) is None


def test_prediction_without_a_step_calls_the_module() -> None:
    """A module with only a forward could not predict."""

    class OnlyForward(Classifier):
        predict_step = Module.predict_step  # type: ignore[assignment]

        def forward(self, batch: Any) -> Any:
            return self.net(batch[0])

    assert len(Trainer(**QUIET).predict(OnlyForward(), loader(8))) == 2


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_each_submodule_has_the_mode_that_it_had(stage: str) -> None:
    """A frozen layer would be trained after the first validation."""
    module = Classifier(dropout=0.5)
    module.net[2].eval()
    before = [one.training for one in module.modules()]
    modes: list[bool] = []
    module.net.register_forward_hook(lambda net, args, output: modes.append(net[2].training or net.training))
    getattr(Trainer(**QUIET), stage)(module, loader(8))
    assert [one.training for one in module.modules()] == before and modes == [False, False]


def test_modes_are_restored_after_validation_inside_a_fit_and_after_an_error() -> None:
    """Training would go on without dropout."""

    class Breaks(Classifier):
        modes: list[bool] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.modes.append(self.net[2].training)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert not self.net[2].training
            if self.global_step == 2:
                raise KeyError

    module = Breaks(dropout=0.5)
    with pytest.raises(KeyError):
        fit(module, loader(16), loader(4), val_check_interval=1)
    assert module.modes == [True, True] and all(one.training for one in module.modules())


def test_a_layer_in_eval_mode_stays_so_and_is_named() -> None:
    """A pretrained encoder's batch norms would be trained, or nobody would know that they are not."""
    module = Classifier(dropout=0.5)
    module.net[2].eval()
    with pytest.warns(UserWarning, match=r"In eval mode, and left so while training: net\.2\."):
        fit(module)
    assert not module.net[2].training and module.net.training


def test_a_frozen_teacher_is_left_in_eval_mode_without_a_word() -> None:
    """Who freezes a teacher would be told to train it, dropout and all; or it would be."""
    module = Classifier()
    module.teacher = Classifier(dropout=0.5).requires_grad_(False).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(module)
    assert not any(one.training for one in module.teacher.modules()) and module.net.training


@pytest.mark.parametrize("inference_mode", [True, False])
def test_an_evaluation_needs_no_gradients_and_changes_nothing(inference_mode: bool) -> None:
    """Memory would be used for graphs, or weights change in validation."""
    modes: list[tuple[bool, bool]] = []

    class Look(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    module = Look()
    before = weights(module)
    Trainer(**QUIET, inference_mode=inference_mode).validate(module, loader(4), verbose=False)
    assert modes == [(False, inference_mode)] and are_equal(before, weights(module))
    assert torch.is_grad_enabled()


def test_the_result_is_printed_unless_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    """A script would end without a word, or a search print a thousand lines."""
    module, trainer = Classifier(), Trainer(**QUIET)
    (values,) = trainer.test(module, loader(8))
    assert capsys.readouterr().out == f"test: test_loss {values['test_loss']:.6g}\n"
    trainer.test(module, loader(8), verbose=False)
    trainer.predict(module, loader(8))
    assert capsys.readouterr().out == ""


def test_the_model_of_the_fit_is_evaluated_without_being_named() -> None:
    """`trainer.test(dataloaders=...)` is how a script ends."""
    module, trainer = fit()
    (values,) = trainer.test(dataloaders=loader(8), verbose=False)
    assert values["test_loss"] == pytest.approx(mean_loss(module, 8), abs=1e-14)
    assert trainer.model is module and trainer.global_step == 6
    with pytest.raises(ConfigError) as caught:
        Trainer(**QUIET).test(dataloaders=loader(8))
    assert caught.value.code == "no-model"


@pytest.mark.parametrize(("stage", "step"), [("validate", "validation_step"), ("test", "test_step")])
def test_an_evaluation_without_its_step_is_refused(stage: str, step: str) -> None:
    """It would run over all data and do nothing."""

    class Less(Classifier):
        pass

    setattr(Less, step, getattr(Module, step))
    with pytest.raises(ConfigError, match=f"Less has no {step}") as caught:
        getattr(Trainer(**QUIET), stage)(Less(), loader(4))
    assert caught.value.code == "no-step"


def test_a_step_need_not_name_the_loader_and_hooks_neither() -> None:
    """`validation_step(self, batch, batch_idx)` is how most are written; with one loader no number is handed over."""

    class Short(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("x", 1.0)

        def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("y", 2.0)

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("z", 3.0)

    assert Trainer(**QUIET).validate(Short(), loader(8), verbose=False) == [{"x": 1.0, "y": 2.0, "z": 3.0}]


def test_what_is_logged_at_the_end_belongs_to_all_loaders() -> None:
    """It would be put under the last loader's name."""

    class Ends(Classifier):
        def on_test_epoch_end(self) -> None:
            self.log("all", 1.5)

    first, second = Trainer(**QUIET).test(Ends(), [loader(4), loader(4)], verbose=False)
    assert first["all"] == second["all"] == 1.5
