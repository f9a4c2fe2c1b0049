from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import Callback, ThroughputMonitor
from drivetrain.base.errors import ConfigError
from tests.unit.trainer.runs import ListLogger, fit, loader


class Clock(Callback):
    """One second for each step, and a hundred for each validation."""

    def __init__(self) -> None:
        self.now = 0.0

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.now += 1.0

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.now += 100.0


@pytest.mark.parametrize("window", [1, 2])
def test_the_speed_is_that_between_two_rows_without_validation(window: int) -> None:
    """Micro-batches would count as steps, or validation as training."""
    clock, logger = Clock(), ListLogger()
    monitor = ThroughputMonitor(
        lambda batch: torch.tensor(batch[0].numel()),
        flops_per_sample=10,
        peak_flops=80 * window,
        clock=lambda: clock.now,
    )
    fit(
        data=loader(32), val_data=loader(4), val_check_interval=2, log_every_n_steps=2, accumulate_grad_batches=window,
        callbacks=[clock, monitor], logger=logger, max_epochs=2,
    )  # fmt: skip
    steps = [step for step, _ in logger.of("throughput/steps_per_s")]
    assert steps == list(range(4, 16 // window + 1, 2))
    assert monitor.values == {
        "throughput/steps_per_s": 1.0,
        "throughput/samples_per_s": 4.0 * window,
        "throughput/tokens_per_s": 32.0 * window,
        "throughput/flops_per_s": 40.0 * window,
        "throughput/mfu": 0.5,
    }


def test_nothing_is_read_from_the_device_between_two_rows() -> None:
    """Each step would wait for the device."""
    reads: list[int] = []

    class Units:
        """What is counted on the device; notes when it is read."""

        def __radd__(self, other: Any) -> Units:
            return self

        __add__ = __radd__

        def __float__(self) -> float:
            reads.append(1)
            return 1.0

    fit(data=loader(32), callbacks=[ThroughputMonitor(lambda batch: Units())], log_every_n_steps=4)
    assert len(reads) == 2


def test_a_peak_alone_is_refused() -> None:
    """A part of an unknown number of operations."""
    with pytest.raises(ConfigError) as raised:
        ThroughputMonitor(peak_flops=1e12)
    assert raised.value.code == "throughput"
