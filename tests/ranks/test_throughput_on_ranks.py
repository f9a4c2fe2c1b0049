"""The speed of a run is that of all ranks."""

from __future__ import annotations

from typing import Any

from drivetrain import ThroughputMonitor
from tests.unit.callbacks.test_throughput_monitor import Clock
from tests.unit.trainer.runs import fit, loader


def test_units_and_samples_of_all_ranks_are_counted(ranks: Any) -> None:
    """The speed would be that of one rank, and the used part too small by the number of ranks."""

    def in_rank() -> dict[str, float]:
        clock = Clock()
        monitor = ThroughputMonitor(
            lambda batch: batch[0].numel(), flops_per_sample=10, peak_flops=80, clock=lambda: clock.now
        )
        _, trainer = fit(data=loader(32), strategy="ddp", log_every_n_steps=2, callbacks=[clock, monitor])
        trainer._fabric.close()
        return monitor.values

    for values in ranks.run(in_rank):
        assert list(values.values()) == [1.0, 8.0, 64.0, 80.0, 0.5]
