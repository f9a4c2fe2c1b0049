"""Which mode a module is in while it is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class EvaluationModes:
    """How a module goes into an evaluation, and comes back: afterwards each submodule has the mode that it had."""

    def on_validation_model_eval(self) -> None:
        """Before validation: eval mode; another one for what an override makes of it."""
        _evaluate(self)

    def on_validation_model_train(self) -> None:
        """After validation, when all modes are back."""

    def on_validation_model_zero_grad(self) -> None:
        """Before validation. Nothing: gradients that there are belong to a window that is not over."""

    def on_test_model_eval(self) -> None:
        """Before the test: eval mode; another one for what an override makes of it."""
        _evaluate(self)

    def on_test_model_train(self) -> None:
        """After the test, when all modes are back."""

    def on_predict_model_eval(self) -> None:
        """Before prediction: eval mode; another one for what an override makes of it."""
        _evaluate(self)

    def on_predict_model_train(self) -> None:
        """After prediction, when all modes are back."""


def _evaluate(module: EvaluationModes) -> None:
    assert isinstance(module, nn.Module)
    module.eval()


@contextmanager
def eval_mode(module: nn.Module, event: str) -> Iterator[None]:
    """Eval mode for a block; afterwards each submodule has the mode that it had.

    Args:
        module: With methods of `EvaluationModes`, or any other.
        event: `"validation"`, `"test"` or `"predict"`: the methods of a module that are asked.
    """
    asked = isinstance(module, EvaluationModes)
    modes = [(one, one.training) for one in module.modules()]
    if isinstance(module, EvaluationModes) and event == "validation":
        module.on_validation_model_zero_grad()
    getattr(module, f"on_{event}_model_eval")() if asked else module.eval()
    try:
        yield
    finally:
        for one, mode in modes:
            one.training = mode
    if asked:
        getattr(module, f"on_{event}_model_train")()
