from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain.base.errors import LoggingError
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.tensorboard_logger import TensorBoardLogger


def opened(save_dir: Path, *, resume_step: int | None = None, **options: Any) -> TensorBoardLogger:
    logger = TensorBoardLogger(save_dir, **options)
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def events_of(logger: TensorBoardLogger) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(logger.log_dir or "")
    accumulator.Reload()
    return accumulator


def scalars(logger: TensorBoardLogger, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events_of(logger).Scalars(name)]


def test_scalars_are_read_back(tmp_path: Path) -> None:
    """A curve with other values, or at other steps, than were logged."""
    logger = opened(tmp_path, prefix="p")
    for step in range(1, 4):
        logger.log_metrics({"loss": torch.tensor(step / 2)}, step=step)
    logger.finalize("success")
    assert scalars(logger, "p-loss") == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_a_second_stage_goes_on_in_the_same_directory(tmp_path: Path) -> None:
    """A test after training that writes elsewhere, or nowhere."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": 1}, step=1)
    logger.finalize("success")
    logger.log_metrics({"test": 2}, step=1)
    logger.finalize("success")
    assert scalars(logger, "loss") == [(1, 1.0)]
    assert scalars(logger, "test") == [(1, 2.0)]
    assert os.listdir(logger.root_dir) == ["version_0"]


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    """Two values for the steps between the last checkpoint and the crash."""
    first = opened(tmp_path, version=0)
    for step in range(1, 7):
        first.log_metrics({"loss": step}, step=step)
    first.finalize("failed")
    second = opened(tmp_path, version=0, resume_step=4)
    for step in range(5, 8):
        second.log_metrics({"loss": 10 * step}, step=step)
    second.finalize("success")
    assert scalars(second, "loss") == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 50), (6, 60), (7, 70)]


def test_hyperparameters_are_on_the_dashboard_and_in_a_file(tmp_path: Path) -> None:
    """Runs that cannot be compared."""
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"seed": 1})
    logger.open(is_global_zero=True)
    logger.log_hyperparams({"net": {"lr": 0.5}})
    logger.finalize("success")
    summary = events_of(logger).summary_metadata["_hparams_/session_start_info"]
    assert b"seed" in summary.plugin_data.content and b"net/lr" in summary.plugin_data.content
    assert scalars(logger, "hp_metric")[0] == (0, -1.0)
    assert (Path(logger.log_dir or "") / "hparams.yaml").read_text() == 'seed: 1\nnet: {"lr": 0.5}\n'


def test_metrics_of_ones_own_replace_the_default_one(tmp_path: Path) -> None:
    """A dashboard that compares by a number that means nothing."""
    logger = opened(tmp_path, default_hp_metric=False)
    logger.log_hyperparams({"lr": 1}, {"acc": 0.5})
    logger.finalize("success")
    assert events_of(logger).Tags()["scalars"] == ["acc"]


def test_a_graph_is_written_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """A trace that moves batch statistics or the random state, so that logging changes the result."""

    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0 * torch.rand(3)

    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), Noise())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    logger = opened(tmp_path, log_graph=True)
    logger.log_graph(model, torch.ones(4, 2))
    logger.finalize("success")
    assert events_of(logger).Tags()["graph"]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_a_graph_without_an_input_is_said(tmp_path: Path) -> None:
    """A graph that was asked for and is not there, without a word."""
    logger = opened(tmp_path, log_graph=True)
    with pytest.warns(UserWarning, match="example_input_array"):
        logger.log_graph(nn.Linear(1, 1))


def test_nothing_is_touched_before_open_and_on_other_ranks(tmp_path: Path) -> None:
    """Every rank writes events."""
    logger = TensorBoardLogger(tmp_path / "logs")
    logger.log_metrics({"a": 1}, step=0)
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=0)
    logger.log_hyperparams({"lr": 1})
    logger.experiment.add_text("a", "b")
    logger.finalize("success")
    assert isinstance(logger.experiment, SilentExperiment)
    assert os.listdir(tmp_path) == []


def test_events_may_go_to_a_directory_below(tmp_path: Path) -> None:
    """Train and validation in one place, where the user wanted two."""
    logger = opened(tmp_path, sub_dir="fit")
    logger.log_metrics({"a": 1}, step=0)
    logger.finalize("success")
    assert (logger.log_dir or "").endswith(os.path.join("version_0", "fit"))
    assert scalars(logger, "a") == [(0, 1.0)]


def test_a_resumed_run_adopts_its_directory(tmp_path: Path) -> None:
    """A resumed run with a second directory."""
    first = opened(tmp_path)
    first.log_metrics({"a": 1}, step=1)
    first.finalize("failed")
    second = opened(tmp_path)
    second.load_state_dict(first.state_dict())
    assert second.log_dir == first.log_dir
    assert os.listdir(second.root_dir) == ["version_0"]


def test_a_value_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    """An error from deep inside of TensorBoard, without the name of the metric."""
    logger = opened(tmp_path)
    with pytest.raises(LoggingError) as error:
        logger.log_metrics({"image": torch.zeros(2)}, step=0)
    assert error.value.code == "log-value"


def test_a_logger_that_writes_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A launcher that fails on the thread of the writer."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=0)
    copy = pickle.loads(pickle.dumps(logger))
    assert copy.log_dir == logger.log_dir
    logger.finalize("success")
