"""Rows of the loggers."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.base.progress import Progress
from drivetrain.loggers.logger import Logger
from drivetrain.loop.metrics import MetricStore


def write(loggers: Sequence[Logger], metrics: MetricStore, values: dict[str, float], progress: Progress) -> None:
    """Write reported values to all loggers; each writes on rank 0 only."""
    if not values:
        return
    metrics.logged_metrics = {**metrics.logged_metrics, **values}
    for logger in loggers:
        logger.log_metrics({**values, "epoch": progress.epoch}, step=progress.step)
