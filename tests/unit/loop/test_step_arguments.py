"""A step is called with what its signature takes."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain import ConfigError, Module
from drivetrain.loop.step_arguments import num_step_arguments


def module_with(name: str, method: Any) -> Any:
    return type("Own", (Module,), {name: method})()


@pytest.mark.parametrize(
    ("method", "one_loader", "several_loaders"),
    [
        (lambda self, batch: None, 1, 1),
        (lambda self, batch, batch_idx: None, 2, 2),
        (lambda self, batch, batch_idx=0: None, 2, 2),
        (lambda self, batch, batch_idx, dataloader_idx=0: None, 2, 3),
        (lambda self, batch, batch_idx, dataloader_idx: None, 3, 3),
        (lambda self, batch, *args: None, 2, 3),
        (lambda self, *args, **kwargs: None, 2, 3),
        (lambda self, batch, batch_idx, *, scale=1: None, 2, 2),
        (lambda self, batch, **kwargs: None, 1, 1),
    ],
)
def test_a_step_of_evaluation_gets_what_it_takes(method: Any, one_loader: int, several_loaders: int) -> None:
    """A step that was written for the familiar protocol would fail with a TypeError."""
    module = module_with("validation_step", method)
    assert num_step_arguments(module, "validation_step", 2) == one_loader
    assert num_step_arguments(module, "validation_step", 3) == several_loaders


def test_a_training_step_gets_two_at_most() -> None:
    """The number of a loader that does not exist would be passed, or asked for."""
    own = module_with("training_step", lambda self, batch, batch_idx, other=0: None)
    assert num_step_arguments(own, "training_step", 2) == 2
    assert num_step_arguments(Module(), "training_step", 2) == num_step_arguments(Module(), "predict_step", 2) == 2


@pytest.mark.parametrize(
    ("step", "method"),
    [
        ("training_step", lambda self: None),
        ("training_step", lambda self, batch, batch_idx, optimizer_idx: None),
        ("training_step", lambda self, batch, *, batch_idx: None),
        ("test_step", lambda self, a, b, c, d: None),
    ],
)
def test_a_step_that_needs_more_is_refused(step: str, method: Any) -> None:
    """It would fail in the first batch, after the data were loaded."""
    with pytest.raises(ConfigError, match="cannot be called with") as caught:
        num_step_arguments(module_with(step, method), step, 2)
    assert caught.value.code == "step-signature" and "Own" in str(caught.value)
