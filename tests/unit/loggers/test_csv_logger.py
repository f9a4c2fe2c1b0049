from __future__ import annotations

import csv
import logging
import os
import pickle
from pathlib import Path

import pytest
import torch

from drivetrain.base.errors import LoggingError
from drivetrain.loggers.csv_logger import CSVLogger


def opened(
    save_dir: Path, *, resume_step: int | None = None, version: int | str | None = 0, **options: int
) -> CSVLogger:
    logger = CSVLogger(save_dir, version=version, **options)
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def read(logger: CSVLogger) -> list[dict[str, str]]:
    with open(logger.metrics_path, newline="") as file:
        return list(csv.DictReader(file))


def steps_of(logger: CSVLogger) -> list[int]:
    return [int(row["step"]) for row in read(logger)]


def test_each_call_is_a_row(tmp_path: Path) -> None:
    """Values that are lost, or stand in the row of another step."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": torch.tensor(0.5)}, step=1)
    logger.log_metrics({"loss": 0.25}, step=2)
    logger.finalize("success")
    assert read(logger) == [{"step": "1", "loss": "0.5"}, {"step": "2", "loss": "0.25"}]


def test_ten_thousand_rows_are_only_appended(tmp_path: Path) -> None:
    """A row that costs more the longer the file is, because all of it is written again."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": 0.0}, step=0)
    logger.save()
    inode = os.stat(logger.metrics_path).st_ino
    for step in range(1, 10_000):
        logger.log_metrics({"loss": step / 7}, step=step)
    logger.save()
    assert os.stat(logger.metrics_path).st_ino == inode
    assert steps_of(logger) == list(range(10_000))


def test_rows_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    """A run that is killed and has lost all of its rows."""
    logger = opened(tmp_path, flush_logs_every_n_steps=10)
    for step in range(25):
        logger.log_metrics({"loss": 1.0}, step=step)
    assert steps_of(logger)[-1] >= 14
    for step in range(1000, 3000, 50):
        logger.log_metrics({"loss": 1.0}, step=step)
    assert steps_of(logger)[-1] == 2950


def test_a_new_column_later_rewrites_the_file_once(tmp_path: Path) -> None:
    """A metric of validation that is dropped, or shifts the columns of older rows."""
    logger = opened(tmp_path)
    for step in range(3):
        logger.log_metrics({"loss": step}, step=step)
    logger.save()
    first = os.stat(logger.metrics_path).st_ino
    logger.log_metrics({"val": 9, "loss": 3}, step=3)
    logger.save()
    second = os.stat(logger.metrics_path).st_ino
    logger.log_metrics({"val": 10}, step=4)
    logger.save()
    assert first != second == os.stat(logger.metrics_path).st_ino
    assert [(row["step"], row["loss"], row["val"]) for row in read(logger)] == [
        ("0", "0", ""), ("1", "1", ""), ("2", "2", ""), ("3", "3", "9"), ("4", "", "10"),
    ]  # fmt: skip
    assert sorted(os.listdir(logger.log_dir or "")) == ["metrics.csv"]


def test_without_a_step_rows_are_numbered(tmp_path: Path) -> None:
    """All rows at the same step."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1})
    logger.log_metrics({"a": 1}, step=7)
    logger.log_metrics({"a": 1})
    logger.save()
    assert steps_of(logger) == [0, 7, 8]


def test_a_resumed_run_has_each_step_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps between the last checkpoint and the crash that stand in the file twice."""
    logger = opened(tmp_path)
    for step in range(1, 11):
        logger.log_metrics({"loss": step}, step=step)
    logger.finalize("failed")
    with caplog.at_level(logging.WARNING):
        again = opened(tmp_path, resume_step=6)
    assert "dropped 4 rows after step 6" in caplog.text
    for step in range(7, 13):
        again.log_metrics({"loss": step * 100}, step=step)
    again.finalize("success")
    assert steps_of(again) == list(range(1, 13))
    assert read(again)[5:7] == [{"step": "6", "loss": "6"}, {"step": "7", "loss": "700"}]


def test_values_at_the_step_of_the_resume_are_not_written_twice(tmp_path: Path) -> None:
    """The validation at the end of an epoch, repeated by a run that goes on from there."""
    logger = opened(tmp_path)
    logger.log_metrics({"val": 1, "epoch": 0}, step=4)
    logger.finalize("failed")
    again = opened(tmp_path, resume_step=4)
    again.log_metrics({"val": 1, "epoch": 0}, step=4)
    again.log_metrics({"train": 2, "epoch": 0}, step=4)
    again.finalize("success")
    again.log_metrics({"val": 5}, step=4)
    again.save()
    assert [(row["val"], row["train"]) for row in read(again)] == [("1", ""), ("", "2"), ("5", "")]


def test_half_a_row_at_the_end_is_dropped(tmp_path: Path) -> None:
    """A row glued to what a killed process left of the one before."""
    logger = opened(tmp_path)
    for step in range(3):
        logger.log_metrics({"a": step, "b": step}, step=step)
    logger.save()
    logger.metrics_path.write_bytes(logger.metrics_path.read_bytes()[:-2])
    again = opened(tmp_path)
    again.log_metrics({"a": 9, "b": 9}, step=9)
    again.save()
    assert steps_of(again) == [0, 1, 9]


def test_an_empty_file_is_begun_anew(tmp_path: Path) -> None:
    """A file without a header after a kill right after it was made."""
    logger = opened(tmp_path)
    logger.metrics_path.touch()
    again = opened(tmp_path)
    again.log_metrics({"a": 1}, step=1)
    again.save()
    assert read(again) == [{"step": "1", "a": "1"}]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """Somebody's own metrics.csv, rewritten."""
    logger = CSVLogger(tmp_path, version=0)
    os.makedirs(logger.log_dir or "")
    logger.metrics_path.write_text("a,b\n1,2\n")
    with pytest.raises(LoggingError) as error:
        logger.open(is_global_zero=True)
    assert error.value.code == "log-file"


def test_nothing_is_touched_before_open_and_on_other_ranks(tmp_path: Path) -> None:
    """Every rank writes the same file."""
    logger = CSVLogger(tmp_path / "logs")
    logger.log_metrics({"a": 1}, step=0)
    logger.log_hyperparams({"lr": 1})
    logger.save()
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=0)
    logger.log_hyperparams({"lr": 1})
    logger.finalize("success")
    assert os.listdir(tmp_path) == []


def test_other_ranks_are_told_the_version(tmp_path: Path) -> None:
    """Ranks with different ideas of where the run is."""
    zero, one = CSVLogger(tmp_path), CSVLogger(tmp_path)
    zero.open(is_global_zero=True)
    one.open(is_global_zero=False)
    assert one.log_dir is None
    one.version = zero.version
    assert one.log_dir == zero.log_dir


def test_hyperparameters_from_before_the_run_are_written_when_it_opens(tmp_path: Path) -> None:
    """What a script logs before `fit`, lost without a word."""
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"seed": 1})
    logger.open(is_global_zero=True)
    logger.log_hyperparams({"lr": 0.5})
    assert (Path(logger.log_dir or "") / "hparams.yaml").read_text() == "seed: 1\nlr: 0.5\n"


def test_a_run_that_loads_its_state_goes_on_in_its_directory(tmp_path: Path) -> None:
    """A resumed run with a second directory."""
    first = CSVLogger(tmp_path)
    first.open(is_global_zero=True)
    first.log_metrics({"a": 1}, step=1)
    first.finalize("failed")
    second = CSVLogger(tmp_path)
    second.open(is_global_zero=True)
    second.load_state_dict(first.state_dict())
    second.open(is_global_zero=True, resume_step=1)
    second.log_metrics({"a": 2}, step=2)
    second.finalize("success")
    assert second.log_dir == first.log_dir
    assert steps_of(second) == [1, 2]


def test_a_prefix_stands_before_each_name(tmp_path: Path) -> None:
    """Two loggers whose columns cannot be told apart."""
    logger = CSVLogger(tmp_path, prefix="a")
    logger.open(is_global_zero=True)
    logger.log_metrics({"loss": 1}, step=0)
    logger.save()
    assert list(read(logger)[0]) == ["step", "a-loss"]


def test_a_value_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    """Text in a column of numbers, found when the file is plotted."""
    logger = opened(tmp_path)
    with pytest.raises(LoggingError) as error:
        logger.log_metrics({"image": torch.zeros(2)}, step=0)
    assert error.value.code == "log-value"
    assert "image" in str(error.value)


def test_a_disk_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """An OSError without the name of the file; and after a failure, the failure hidden by it."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=0)
    logger.metrics_path.mkdir()
    with pytest.raises(LoggingError) as error:
        logger.finalize("success")
    assert error.value.code == "log-write"
    assert "metrics.csv" in str(error.value)
    logger.finalize("failed")


def test_a_logger_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A launcher that cannot hand the logger to its ranks."""
    logger = pickle.loads(pickle.dumps(CSVLogger(tmp_path)))
    logger.open(is_global_zero=True)
    assert logger.version == 0
