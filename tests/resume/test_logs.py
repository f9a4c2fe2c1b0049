"""What loggers have written after a kill and a resume is what they write without one."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import pytest

from drivetrain import CSVLogger, TensorBoardLogger
from drivetrain.testing.same_run import SameRun, Stop
from tests.resume.training import Case, make_run

STOPS = [
    Stop(3), Stop(3, "on_train_batch_end", lost_steps=1), Stop(4, lost_steps=2), Stop(4, "on_validation_end"),
    Stop(4, "on_train_epoch_end"), Stop(2, "on_step_end", is_first=True, lost_steps=1),
]  # fmt: skip


def rows_of(directory: Path) -> list[dict[str, str]]:
    with open(directory / "logs" / "version_0" / "metrics.csv", newline="") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def scalars_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "logs" / "version_0"), size_guidance={"scalars": 0})
    events.Reload()
    found = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    return {**found, "epoch": sorted(set(found["epoch"]))}  # it is written with each row, also with two of one step


def make(kind: type[Any], directory: Path) -> Any:
    logger = kind(directory, "logs")
    return make_run(Case(options=(("logger", [logger]),)), directory)


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_csv_file_has_each_row_once(stop: Stop, tmp_path: Path) -> None:
    """Rows would be missing, or stand twice, around the step where a run was killed."""
    check = SameRun(functools.partial(make, CSVLogger), tmp_path)
    assert check.whole and check.difference(stop) is None
    assert rows_of(tmp_path / "stopped-2") == rows_of(tmp_path / "whole-1")


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_dashboard_shows_each_value_once(stop: Stop, tmp_path: Path) -> None:
    """A curve would have gaps, or two values, around the step where a run was killed."""
    pytest.importorskip("tensorboard")
    check = SameRun(functools.partial(make, TensorBoardLogger), tmp_path)
    assert check.whole and check.difference(stop) is None
    assert scalars_of(tmp_path / "stopped-2") == scalars_of(tmp_path / "whole-1")
