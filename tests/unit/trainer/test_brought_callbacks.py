"""Callbacks that a module brings along."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain import Callback, ConfigError, GradientAccumulationScheduler, HookError, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, loader


class Counting(Callback):
    """Counts steps."""

    def __init__(self, label: str = "") -> None:
        self.label, self.steps = label, 0

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.steps += 1


class Brings(Classifier):
    """Brings what it is given."""

    def __init__(self, brought: Any) -> None:
        super().__init__()
        self.brought = brought

    def configure_callbacks(self) -> Any:
        return self.brought


def test_a_callback_that_a_module_brings_runs() -> None:
    """The method would be defined, and never be asked."""
    one = Counting()
    trainer = Trainer(**QUIET, max_epochs=1)
    trainer.fit(Brings(one), loader(8))
    assert one.steps == 2 and trainer.callbacks == [one]


def test_a_callback_that_a_module_brings_takes_the_place_of_one_of_its_class() -> None:
    """Two of a kind would do their work twice."""
    mine, other = Counting("mine"), Callback()
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[Counting("trainer"), other])
    module = Brings([mine])
    trainer.fit(module, loader(8))
    trainer.validate(module, loader(4), verbose=False)
    assert trainer.callbacks == [other, mine] and mine.steps == 2


@pytest.mark.parametrize(
    ("brought", "error", "code"),
    [(Counting, HookError, "not-a-callback"), (GradientAccumulationScheduler({0: 2}), ConfigError, "window-size")],
)
def test_what_a_module_cannot_bring_is_refused(brought: Any, error: Any, code: str) -> None:
    """It would be ignored."""
    with pytest.raises(error) as caught:
        Trainer(**QUIET, max_epochs=1).fit(Brings(brought), loader(8))
    assert caught.value.code == code
