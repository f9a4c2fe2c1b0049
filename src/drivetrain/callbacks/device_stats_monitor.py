"""How much of a device is in use."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback

_OF_GPU = {
    "allocated_bytes.all.current": "allocated_bytes",
    "allocated_bytes.all.peak": "peak_allocated_bytes",
    "reserved_bytes.all.current": "reserved_bytes",
    "num_alloc_retries": "num_alloc_retries",
    "num_ooms": "num_ooms",
}


class DeviceStatsMonitor(Callback):
    """Writes rank 0's memory and processor time with the rows of the loggers. Nothing waits for the device.

    Args:
        cpu_stats: Of the process, too: its greatest resident memory, and the processors that it keeps busy. By default
            only where the run is on the CPU.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._mark = (0.0, 0.0)  # wall and processor time

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count, and refuse a run in which nothing would be written.

        Raises:
            ConfigError: There is no logger.
        """
        self._mark = (time.monotonic(), time.process_time())
        if not trainer.loggers and not trainer.fast_dev_run:
            raise ConfigError(
                "DeviceStatsMonitor has no logger to write to.",
                code="no-logger",
                do="Drop it, or give the Trainer a logger.",
            )

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Write."""
        if not trainer.is_log_step or not trainer.is_global_zero:
            return
        values = self.read(trainer.device)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def read(self, device: torch.device) -> dict[str, float]:
        """The values now, by name."""
        values: dict[str, float] = {}
        if device.type == "cuda":
            stats = torch.cuda.memory_stats(device)
            values = {f"device/{name}": float(stats.get(key, 0)) for key, name in _OF_GPU.items()}
        if self.cpu_stats or (self.cpu_stats is None and device.type == "cpu"):
            before, self._mark = self._mark, (time.monotonic(), time.process_time())
            wall, busy = self._mark[0] - before[0], self._mark[1] - before[1]
            unit = 1 if sys.platform == "darwin" else 1024
            values["cpu/peak_resident_bytes"] = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
            values["cpu/busy_processors"] = busy / wall if wall > 0 else 0.0
        return values
