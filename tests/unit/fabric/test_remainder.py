"""Micro-batches that do not fill a window, and windows whose step is skipped."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import ConfigError, NonFiniteError
from drivetrain.testing.fixtures import make_dataset
from tests.unit.fabric.raw_loop import Watched, distance, gradient_of
from tests.unit.fabric.test_windows import iter_only
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights

DATA = make_dataset(28)


def epochs(watched: Watched, batches: Any, number: int, **options: Any) -> list[list[torch.Tensor]]:
    """The gradients of all steps of some epochs of one `Windows`."""
    windows = watched.fabric.windows(batches, watched.model, watched.optimizer, **options)
    for _ in range(number):
        for window in windows:
            for x, y in window:
                window.backward(functional.cross_entropy(watched.model(x), y))
    return watched.gradients


@pytest.mark.parametrize("is_sized", [True, False])
def test_what_is_left_over_is_carried_into_the_next_epoch(is_sized: bool) -> None:
    """The carried samples would count twice, not at all, or with another weight."""
    watched = Watched()
    plain = DataLoader(DATA, batch_size=4)  # 7 micro-batches; windows of 3: the last one of an epoch is open
    batches = watched.fabric.setup_dataloaders(plain) if is_sized else iter_only(plain)
    gradients = epochs(watched, batches, 3, size=3, remainder="carry")
    stream = [DATA[i] for _ in range(3) for i in range(28)]
    assert len(gradients) == 7
    for index, gradient in enumerate(gradients):
        assert distance(gradient, gradient_of(stream[12 * index : 12 * index + 12])) < 1e-14


def test_a_window_may_be_longer_than_an_epoch() -> None:
    """It would step at the end of each epoch, or never."""
    watched = Watched()
    batches = watched.fabric.setup_dataloaders(DataLoader(DATA, batch_size=4))
    gradients = epochs(watched, batches, 4, size=10, remainder="carry")
    stream = [DATA[i] for _ in range(4) for i in range(28)]
    assert len(gradients) == 2
    assert distance(gradients[0], gradient_of(stream[:40])) < 1e-14
    assert distance(gradients[1], gradient_of(stream[40:80])) < 1e-14
    stepping = Watched()
    batches = stepping.fabric.setup_dataloaders(DataLoader(DATA, batch_size=4))
    (gradient,) = epochs(stepping, batches, 1, size=10)
    assert distance(gradient, gradient_of([DATA[i] for i in range(28)])) < 1e-14


@pytest.mark.parametrize("is_sized", [True, False])
def test_what_is_left_over_can_be_dropped_and_is_said(is_sized: bool) -> None:
    """A short window would step, or its gradient leak into the next epoch."""
    watched = Watched()
    plain = DataLoader(DATA, batch_size=4)
    batches = watched.fabric.setup_dataloaders(plain) if is_sized else iter_only(plain)
    with pytest.warns(UserWarning, match="they were dropped") as caught:
        gradients = epochs(watched, batches, 2, size=3, remainder="drop")
    assert len(caught) == 1 and len(gradients) == 4
    for index, gradient in enumerate(gradients):
        start = 12 * (index % 2)
        assert distance(gradient, gradient_of([DATA[i] for i in range(start, start + 12)])) < 1e-14


@pytest.mark.parametrize("remainder", ["step", "carry", "drop"])
def test_a_trainer_has_the_same_policies(remainder: str) -> None:
    """Epochs, steps or logged values would count what was not done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        logger = ListLogger()
        _, trainer = fit(
            data=loader(28), max_epochs=3, accumulate_grad_batches=3, remainder=remainder, logger=logger,
            log_every_n_steps=1,
        )  # fmt: skip
    assert trainer.global_step == {"step": 9, "carry": 7, "drop": 6}[remainder]
    assert trainer.current_epoch == 3


def test_an_epoch_that_is_dropped_whole_is_an_error() -> None:
    """Training would run for ever, or end without a step."""
    with (
        pytest.warns(UserWarning, match="dropped"),
        pytest.raises(drivetrain.DataError, match="remainder='drop' leaves no window"),
    ):
        fit(data=loader(8), accumulate_grad_batches=5, remainder="drop")


def test_a_carried_window_survives_a_checkpoint(tmp_path: Any) -> None:
    """The gradients of the open window would be lost, and the first step after the resume be another."""
    options: dict[str, Any] = {"accumulate_grad_batches": 3, "remainder": "carry"}
    with pytest.warns(UserWarning, match="do not fill a window"):
        whole, _ = fit(data=loader(28), max_epochs=4, **options)
        _, trainer = fit(data=loader(28), max_epochs=1, **options)
        trainer.save_checkpoint(tmp_path / "open")
        module, resumed = Classifier(), drivetrain.Trainer(**QUIET, max_epochs=4, **options)
        resumed.fit(module, loader(28), ckpt_path=tmp_path / "open")
    assert are_equal(weights(module), weights(whole)) and resumed.global_step == 9


class LogsBatches(Classifier):
    """It logs numbers that tell which micro-batches a row holds."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("mean", float(batch_idx))
        self.log("sum", float(batch_idx), reduce_fx="sum")
        self.log("least", float(batch_idx), reduce_fx="min")
        return self.loss_of(batch)


MICRO_BATCHES = [(0, 1, 2), (3, 4, 5), (6, 0, 1), (2, 3, 4), (5, 6, 0), (1, 2, 3), (4, 5, 6)]  # of each window


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_the_row_of_a_carried_window_holds_all_of_its_micro_batches(tmp_path: Any, is_interrupted: bool) -> None:
    """A logged loss would depend on where an epoch cuts the window."""
    logger = ListLogger()
    options: dict[str, Any] = {"accumulate_grad_batches": 3, "remainder": "carry", "log_every_n_steps": 1}
    path = None
    if is_interrupted:
        with pytest.warns(UserWarning, match="do not fill a window"):
            _, trainer = fit(LogsBatches(), loader(28), max_epochs=1, logger=logger, **options)
        trainer.save_checkpoint(path := tmp_path / "open")
    trainer = drivetrain.Trainer(**{**QUIET, **options, "logger": logger}, max_epochs=3)
    trainer.fit(LogsBatches(), loader(28), ckpt_path=path)
    rows = [row for _, row in logger.rows if "mean" in row]
    assert [row["sum"] for row in rows] == [sum(indices) for indices in MICRO_BATCHES]
    assert [row["mean"] for row in rows] == [sum(indices) / 3 for indices in MICRO_BATCHES]
    assert [row["least"] for row in rows] == [min(indices) for indices in MICRO_BATCHES]


class Explodes(Classifier):
    """Its loss, or a gradient, is not finite in one step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        if batch_idx == 3:
            zero = (self.net[0].weight - self.net[0].weight).square().sum()
            loss = loss * math.nan if self.how == "loss" else loss + zero.sqrt()
        return loss


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_counted_and_said_once(how: str) -> None:
    """One bad batch would ruin all weights."""
    with pytest.warns(UserWarning, match="inf or nan: its optimizer step was skipped") as caught:
        module, trainer = fit(Explodes(how), loader(40), accumulate_grad_batches=2, nonfinite="skip", max_epochs=2)
    assert len(caught) == 1 and trainer.skipped_steps == {"non-finite": 2}
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_a_step_that_is_not_finite_can_be_an_error(how: str) -> None:
    """The run would go on for hours with weights that are nan."""
    with pytest.raises(NonFiniteError, match=r"in step 1 \(micro-batches 2 to 3\).*net\.0\.weight"):
        fit(Explodes(how), loader(40), accumulate_grad_batches=2, nonfinite="error")


def test_by_default_nothing_is_looked_at() -> None:
    """Each step would wait for the device."""
    module, _ = fit(Explodes("loss"), loader(40), accumulate_grad_batches=2)
    assert not any(bool(torch.isfinite(p).all()) for p in module.parameters())


@pytest.mark.parametrize(("name", "code"), [("remainder", "remainder-policy"), ("nonfinite", "non-finite-policy")])
def test_an_unknown_policy_is_refused(name: str, code: str) -> None:
    """It would be taken for the default."""
    with pytest.raises(ConfigError, match=f"{name}='pad'") as caught:
        fit(**{name: "pad"})
    assert caught.value.code == code
