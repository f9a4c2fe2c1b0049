"""Runs of MLflow in a directory, read back by its own client."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain import ConfigError, LoggingError, MLFlowLogger, ModelCheckpoint, Trainer
from drivetrain.loggers.logger import SilentExperiment
from tests.unit.trainer.runs import QUIET, Given, fit, numbers

mlflow = pytest.importorskip("mlflow")
KEEPER: dict[str, Any] = {"filename": "{step}", "every_n_train_steps": 3, "save_top_k": -1}


@pytest.fixture(autouse=True)
def a_directory_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow 3.17 asks for a database otherwise."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def opened(root: Path, *, resume_step: int | None = None, **options: Any) -> MLFlowLogger:
    logger = MLFlowLogger(save_dir=root / "mlruns", **options)
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def steps_of(logger: MLFlowLogger, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in logger.experiment.get_metric_history(logger.run_id, name)]


def run_of(logger: MLFlowLogger) -> Any:
    return logger.experiment.get_run(logger.run_id)


def test_values_are_read_back_under_their_step(tmp_path: Path) -> None:
    """A curve with other values, or at other steps, than were logged."""
    logger = opened(tmp_path, prefix="x", run_name="first", tags={"a": 1})
    logger.log_metrics({"loss": 0.5, "n": 1}, step=10)
    logger.log_metrics({"loss": float("nan")})
    logger.finalize("success")
    (first, second) = steps_of(logger, "x-loss")
    assert first == (10, 0.5) and second[0] == 11 and second[1] != second[1]
    run = run_of(logger)
    assert (run.info.status, run.info.run_name, run.data.tags["a"]) == ("FINISHED", "first", "1")


@pytest.mark.parametrize(("status", "there"), [("failed", "FAILED"), ("interrupted", "KILLED")])
def test_a_run_says_how_it_ended(tmp_path: Path, status: str, there: str) -> None:
    """A crashed run that looks like a good one."""
    logger = opened(tmp_path)
    logger.finalize(status)
    assert run_of(logger).info.status == there


def test_hyperparameters_are_written_once(tmp_path: Path) -> None:
    """MLflow refuses to change one: a resumed run would fail at its start."""
    logger = MLFlowLogger(save_dir=tmp_path / "mlruns")
    logger.log_hyperparams({"seed": 1, **{f"p{number}": number for number in range(150)}})
    logger.open(is_global_zero=True)
    logger.log_hyperparams({"net": {"lr": 0.5}})
    with pytest.warns(UserWarning, match="first value of a parameter: seed stay"):
        logger.log_hyperparams({"seed": 2})
    params = run_of(logger).data.params
    assert (params["seed"], params["net/lr"], params["p149"]) == ("1", "0.5", "149")


def test_a_resumed_run_has_each_step_once_under_its_id(tmp_path: Path) -> None:
    """A run of its own after each crash, or two values for the steps between the last checkpoint and the crash."""
    values = [float(value) for value in range(1, 9)]

    class Crash(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise RuntimeError("crash")
            return super().training_step(batch, batch_idx)

    first = MLFlowLogger(save_dir=tmp_path / "mlruns")
    saving = {"enable_checkpointing": None, "callbacks": [ModelCheckpoint(tmp_path / "kept", **KEEPER)]}
    with pytest.raises(RuntimeError, match="crash"):
        fit(Crash(), numbers(*values), logger=first, log_every_n_steps=1, **saving)
    assert run_of(first).info.status == "FAILED"
    second = MLFlowLogger(save_dir=tmp_path / "mlruns")
    trainer = Trainer(**{**QUIET, "logger": second}, max_epochs=1, log_every_n_steps=1)
    trainer.fit(Given(), numbers(*values), ckpt_path=tmp_path / "kept" / "step=3.ckpt")
    assert second.run_id == first.run_id
    assert steps_of(second, "loss") == [(step, float(step)) for step in range(1, 9)]
    assert len(second.experiment.search_runs([second.experiment_id])) == 1
    assert run_of(second).info.status == "FINISHED"


def test_what_was_not_written_of_the_last_step_is_written_when_it_comes_again(tmp_path: Path) -> None:
    """A crash between a step's row and its validation would leave a hole."""
    first = opened(tmp_path)
    first.log_metrics({"loss": 1}, step=1)
    first.log_metrics({"loss": 2}, step=2)
    second = opened(tmp_path, run_id=first.run_id, resume_step=1)
    second.log_metrics({"loss": 2, "val": 5}, step=2)
    second.log_metrics({"loss": 3}, step=3)
    second.finalize("success")
    second.log_metrics({"loss": 4}, step=3)  # a further stage repeats nothing
    assert steps_of(second, "loss") == [(1, 1), (2, 2), (3, 3), (3, 4)]
    assert steps_of(second, "val") == [(2, 5)]


def test_images_figures_and_text_are_artifacts(tmp_path: Path) -> None:
    """Media that need MLflow's own calls."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=4)
    logger.log_image("image", np.zeros((4, 4, 3), dtype=np.uint8))
    logger.log_figure("figure", pyplot.figure(figsize=(1, 1)), step=5)
    logger.log_text("text", "yes", step=6)

    def names(path: str) -> list[str]:
        return [one.path for one in logger.experiment.list_artifacts(logger.run_id, path)]

    assert names("figure") == ["figure/5.png"] and names("text") == ["text/6.txt"]
    assert any(name.startswith("images/image") for name in names("images"))


@pytest.mark.parametrize(("log_model", "kept"), [("all", {3, 6, 7}), (True, {7})])
def test_checkpoints_are_kept_as_artifacts(tmp_path: Path, log_model: Any, kept: set[int]) -> None:
    """`log_model` that does nothing."""
    logger = MLFlowLogger(save_dir=tmp_path / "mlruns", log_model=log_model)
    keeper = ModelCheckpoint(**KEEPER)
    data = numbers(*(float(value) for value in range(7)))
    fit(Given(), data, logger=logger, enable_checkpointing=None, callbacks=[keeper])
    assert keeper.last_model_path.startswith(str(tmp_path / logger.name / str(logger.run_id) / "checkpoints"))
    found = logger.experiment.list_artifacts(logger.run_id, "checkpoints")
    assert {Path(one.path).name for one in found} == {f"step={step}.ckpt" for step in kept}


def test_nothing_is_written_on_other_ranks(tmp_path: Path) -> None:
    """A run for each rank."""
    logger = MLFlowLogger(save_dir=tmp_path / "mlruns")
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_hyperparams({"a": 1})
    logger.log_text("b", "c")
    assert isinstance(logger.experiment, SilentExperiment)
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == [] and logger.run_id is None


def test_a_logger_with_a_run_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A second launch would fail to pickle the trainer."""
    logger = opened(tmp_path)
    assert pickle.loads(pickle.dumps(logger)).run_id == logger.run_id


def test_what_is_no_number_or_no_policy_is_refused(tmp_path: Path) -> None:
    """A misspelt word that means no, or MLflow's own message about a value without a name."""
    with pytest.raises(ConfigError) as raised:
        MLFlowLogger(log_model="every")
    assert raised.value.code == "log-model"
    with pytest.raises(LoggingError) as wrong:
        opened(tmp_path).log_metrics({"a": "b"}, step=1)
    assert wrong.value.code == "log-value"
