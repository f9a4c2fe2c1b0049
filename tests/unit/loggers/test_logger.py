from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from drivetrain.loggers.logger import Logger, SilentExperiment


class ListLogger(Logger):
    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def name(self) -> str:
        return "list"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.is_writing:
            self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any) -> None: ...


def test_a_logger_of_ones_own_needs_three_methods() -> None:
    """A contract that asks for more than a name and two ways to write."""
    logger = ListLogger()
    logger.log_metrics({"a": 1}, step=0)
    logger.open(is_global_zero=True)
    logger.log_metrics({"a": 2}, step=1)
    logger.finalize("success")
    assert logger.rows == [(1, {"a": 2})]


def test_the_version_can_be_set_from_outside() -> None:
    """Ranks that never learn where rank 0 writes."""
    logger = ListLogger()
    assert logger.version is None
    logger.version = 3
    assert logger.version == 3


def test_an_incomplete_logger_cannot_be_made() -> None:
    """A logger that fails at its first row, hours into a run."""

    class Half(Logger):
        @property
        def name(self) -> str:
            return "half"

    with pytest.raises(TypeError, match="log_metrics"):
        Half()  # type: ignore[abstract]


def test_a_silent_experiment_takes_every_call() -> None:
    """`logger.experiment.add_image(...)` in a step that fails on all ranks but one."""
    experiment = SilentExperiment()
    experiment.add_image("a", [1], step=3)
    experiment["a"].b.c("d")
    experiment["a"] = 1
