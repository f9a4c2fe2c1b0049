"""Monitors of inf and nan, and of the slowest rank, in one process."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from drivetrain import ConfigError, Module, NonFiniteMonitor, StragglerMonitor
from tests.unit.callbacks.test_throughput_monitor import Clock
from tests.unit.trainer.runs import ListLogger, fit, loader, numbers


class Bad(Module):
    """Its second parameter gets a nan in given steps, its loss in others; the first one later."""

    def __init__(self, bad_gradients: set[int], bad_losses: set[int] = frozenset(), late: int = -1) -> None:  # type: ignore[assignment]
        super().__init__()
        self.good = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.bad = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.bad_gradients, self.bad_losses, self.late = bad_gradients, bad_losses, late

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        factor = float("nan") if batch_idx in self.bad_gradients else 1.0
        hidden = self.bad * 1.0
        hidden.register_hook(lambda gradient: gradient * factor)
        good = self.good * 1.0
        good.register_hook(lambda gradient: gradient * (float("nan") if batch_idx == self.late else 1.0))
        loss = (good + hidden) * batch[0].mean()
        return loss + float("inf") if batch_idx in self.bad_losses else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


DATA = numbers(*(float(value) for value in range(12)))


def test_losses_and_gradients_are_counted_and_the_first_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A run that has gone bad would say so nowhere, or name what was infected later."""
    monitor, logger = NonFiniteMonitor(), ListLogger()
    with caplog.at_level(logging.WARNING, "drivetrain.callbacks"):
        fit(Bad({2, 3}, {1, 7}, late=4), DATA, callbacks=[monitor], logger=logger, log_every_n_steps=6)
    assert (monitor.first_step, monitor.first_parameters) == (3, ["bad"])
    assert monitor.num_steps >= 2 and monitor.num_losses >= 2
    assert "first in step 3, of bad;" in caplog.text
    assert [step for step, _ in logger.of("nonfinite/losses")] == [6, 12]


def test_losses_of_steps_that_are_skipped_are_counted() -> None:
    """`nonfinite="skip"` would hide how often it acts."""
    monitor = NonFiniteMonitor()
    with pytest.warns(UserWarning, match="its optimizer step was skipped"):
        fit(Bad(set(), {1, 7}), DATA, callbacks=[monitor], nonfinite="skip")
    assert (monitor.num_losses, monitor.num_steps, monitor.first_step) == (2, 0, None)


def test_a_good_run_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A warning that is always there is read by nobody."""
    logger = ListLogger()
    fit(Bad(set()), DATA, callbacks=[NonFiniteMonitor()], logger=logger, log_every_n_steps=2)
    assert caplog.text == "" and logger.of("nonfinite/losses") == []


def test_nothing_is_read_back_between_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step would wait for the device."""
    reads: list[int] = []

    class Counted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__bool__, torch.Tensor.tolist):
                reads.append(1)
            return function(*args, **(kwargs or {}))

    def count(every: int, callbacks: list[Any]) -> int:
        reads.clear()
        with Counted():
            fit(Bad(set()), DATA, callbacks=callbacks, log_every_n_steps=every)
        return len(reads)

    assert count(100, [NonFiniteMonitor()]) - count(100, []) <= 2  # once, at the end


def test_one_rank_waits_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A single rank would be told that it is slow."""
    clock, logger = Clock(), ListLogger()
    monitor = StragglerMonitor("2 steps", clock=lambda: clock.now)
    fit(data=loader(32), callbacks=[clock, monitor], logger=logger)
    assert monitor.slowest is None and len(monitor.own_s) == 1 and caplog.text == ""
    assert [step for step, _ in logger.of("straggler/own_s")] == [2, 4, 6, 8]


def test_a_threshold_of_nothing_is_refused() -> None:
    """Each interval would name somebody."""
    with pytest.raises(ConfigError) as raised:
        StragglerMonitor(threshold=0)
    assert raised.value.code == "straggler"
