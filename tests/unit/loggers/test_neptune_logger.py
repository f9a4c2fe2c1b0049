"""Runs of Neptune in its offline mode, read back from its files."""

from __future__ import annotations

import pickle
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain import ConfigError, LoggingError, ModelCheckpoint, NeptuneLogger, Trainer
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.neptune_files import last_steps_in_service, last_steps_on_disk, offline_runs, operations_of
from drivetrain.loggers.neptune_logger import _RESTING
from tests.unit.trainer.runs import QUIET, Given, fit, numbers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages under it, about one another
    neptune = pytest.importorskip("neptune")

QUIET_NEPTUNE: dict[str, Any] = {
    "mode": "offline", "source_files": [], "capture_stdout": False, "capture_stderr": False,
    "capture_hardware_metrics": False, "capture_traceback": False, "git_ref": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Runs end with the test; nothing goes to a network."""

    def no_network(host: Any, *args: Any, **options: Any) -> Any:
        raise AssertionError(f"{host} was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setenv("NEPTUNE_DATA_DIRECTORY", str(tmp_path / "neptune"))
    yield
    finish()


def finish() -> None:
    """Stop the runs of loggers, as the end of the process does."""
    for run in _RESTING:
        run.stop()
    _RESTING.clear()


def made(root: Path, **options: Any) -> NeptuneLogger:
    return NeptuneLogger(save_dir=root / "kept", **{"project": "w/p", **QUIET_NEPTUNE, **options})


def opened(root: Path, *, resume_step: int | None = None, **options: Any) -> NeptuneLogger:
    logger = made(root, **options)
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def operations(logger: NeptuneLogger) -> list[dict[str, Any]]:
    """All that was written to a run, in that order."""
    logger.save()
    return [one for path in offline_runs(str(logger.version)) for one in operations_of(path)]


def assigned(logger: NeptuneLogger) -> dict[str, Any]:
    return {"/".join(one["path"]): one["value"] for one in operations(logger) if "value" in one}


def steps_of(logger: NeptuneLogger, name: str) -> list[tuple[int, Any]]:
    """Steps and values of a series."""
    series = [one for one in operations(logger) if one["type"].startswith("Log") and "/".join(one["path"]) == name]
    return [(value["step"], value["value"]) for one in series for value in one["values"]]


def test_values_are_read_back_under_their_step(tmp_path: Path) -> None:
    """A curve with other values, or at other steps, than were logged."""
    logger = opened(tmp_path, name="first", prefix="x")
    logger.log_metrics({"loss": torch.tensor(0.5)}, step=10)
    logger.log_metrics({"loss": 0.25, "val/n": np.int64(3)})
    logger.finalize("failed")
    assert steps_of(logger, "x/loss") == [(10, 0.5), (11, 0.25)] and steps_of(logger, "x/val/n") == [(11, 3)]
    fields = assigned(logger)
    assert (fields["x/status"], fields["sys/name"]) == ("failed", "first")


def test_parameters_from_before_and_after_the_start_are_there(tmp_path: Path) -> None:
    """Runs that cannot be compared."""
    logger = made(tmp_path)
    logger.log_hyperparams({"seed": 1})
    logger.open(is_global_zero=True)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_hyperparams({"net": {"lr": 0.5, "layers": [1, 2]}})
    logger.finalize("success")
    fields = assigned(logger)
    names = ("seed", "net/lr", "net/layers")
    assert [fields[f"training/hyperparams/{name}"] for name in names] == [1, 0.5, "[1, 2]"]


def test_a_second_stage_goes_on_in_the_same_run(tmp_path: Path) -> None:
    """A test after training in a run of its own."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": 1}, step=1)
    logger.finalize("success")
    logger.open(is_global_zero=True)
    logger.log_metrics({"loss": 2}, step=1)
    logger.finalize("success")
    assert steps_of(logger, "training/loss") == [(1, 1), (1, 2)] and len(offline_runs(str(logger.version))) == 1


def test_loggers_have_a_run_each(tmp_path: Path) -> None:
    """In a cross-validation all folds would be one run, or each would measure the hardware of all later ones."""
    loggers, runs = [], []
    for fold in range(2):
        logger = opened(tmp_path)
        logger.log_metrics({"fold": fold}, step=1)
        logger.finalize("success")
        loggers.append(logger)
        runs.append(logger.run)
    assert [run.get_state() for run in runs] == ["stopped", "started"]
    assert [steps_of(logger, "training/fold") for logger in loggers] == [[(1, 0)], [(1, 1)]]


def test_a_run_or_a_namespace_of_the_script_is_used(tmp_path: Path) -> None:
    """The script's run would stay empty, or be stopped under it."""
    run = neptune.init_run(**QUIET_NEPTUNE)
    for given, above in ((run, ""), (run["fold/1"], "fold/1/")):
        logger = opened(tmp_path, run=given)
        logger.log_metrics({"a": 1}, step=1)
        logger.finalize("success")
        assert logger.experiment is run and steps_of(logger, f"{above}training/a") == [(1, 1)]
    finish()
    assert run.get_state() == "started"
    again = opened(tmp_path, run=run, resume_step=1)
    again.log_metrics({"a": 1}, step=1)
    assert steps_of(again, "training/a") == [(1, 1)]
    run.stop()


def test_a_resumed_run_has_each_step_once_under_its_id(tmp_path: Path) -> None:
    """A run of its own after each crash, or two values for the steps between the last checkpoint and the crash."""
    values = [float(value) for value in range(1, 9)]
    keeper: dict[str, Any] = {"filename": "{step}", "every_n_train_steps": 3, "save_top_k": -1}

    class Crash(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise RuntimeError("crash")
            return super().training_step(batch, batch_idx)

    first, second = made(tmp_path), made(tmp_path)
    saving = {"enable_checkpointing": None, "callbacks": [ModelCheckpoint(tmp_path / "checkpoints", **keeper)]}
    with pytest.raises(RuntimeError, match="crash"):
        fit(Crash(), numbers(*values), logger=first, log_every_n_steps=1, **saving)
    trainer = Trainer(**{**QUIET, "logger": second}, max_epochs=1, log_every_n_steps=1)
    trainer.fit(Given(), numbers(*values), ckpt_path=tmp_path / "checkpoints" / "step=3.ckpt")
    assert second.version == first.version and len(offline_runs(str(second.version))) == 2
    assert steps_of(second, "training/loss") == [(step, float(step)) for step in range(1, 9)]


def test_what_was_not_written_of_the_last_step_is_written_when_it_comes_again(tmp_path: Path) -> None:
    """A crash between a step's row and its validation would leave a hole."""
    first = opened(tmp_path, custom_run_id="r1")
    first.log_metrics({"loss": 1}, step=1)
    first.log_metrics({"loss": 2}, step=2)
    first.finalize("failed")
    (path,) = offline_runs("r1")
    with (path / "data-1.log").open("a", encoding="utf-8") as file:
        file.write('{"obj": {"type": "Log')  # a process that was killed while it wrote
    assert last_steps_on_disk("r1") == {"training/loss": 2}
    second = opened(tmp_path, custom_run_id="r1", resume_step=1)
    second.log_metrics({"loss": 2, "val": 5}, step=2)
    second.log_metrics({"loss": 3}, step=3)
    second.finalize("success")
    second.log_metrics({"loss": 4}, step=3)  # a further stage repeats nothing
    assert steps_of(second, "training/loss") == [(1, 1), (2, 2), (3, 3), (3, 4)]
    assert steps_of(second, "training/val") == [(2, 5)]


def test_a_run_that_was_begun_is_asked_for_its_last_steps() -> None:
    """With a server, no other place tells them. Neptune's `debug` mode counts the steps of a series itself."""
    run = neptune.init_run(**{**QUIET_NEPTUNE, "mode": "debug"})
    for step in range(3):
        run["training/val/loss"].append(0.5, step=step)
    run["training/text"].append("a", step=9)
    run["training/hyperparams/lr"] = 0.5
    assert last_steps_in_service(run) == {"training/val/loss": 2}
    run.stop()


def test_images_figures_and_text_are_series(tmp_path: Path) -> None:
    """Media that are dropped, or that need Neptune's own calls."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=4)
    logger.log_image("image", [np.zeros((4, 4, 3))])
    figure = pyplot.figure(figsize=(1, 1))
    logger.log_figure("figure", figure, step=5)
    pyplot.close(figure)
    logger.log_text("text", "yes", step=6)
    logger.finalize("success")
    kinds = {"/".join(one["path"]): one["type"] for one in operations(logger)}
    assert (kinds["training/image"], kinds["training/figure"]) == ("LogImages", "LogImages")
    steps = [steps_of(logger, f"training/{name}")[0][0] for name in ("image", "figure", "text")]
    assert steps == [4, 5, 6] and steps_of(logger, "training/text") == [(6, "yes")]


@pytest.mark.parametrize(("log_model", "kept"), [("all", {3, 6, 7}), (True, {7}), (False, set())])
def test_checkpoints_are_kept_as_files(tmp_path: Path, log_model: Any, kept: set[int]) -> None:
    """`log_model_checkpoints` that does nothing."""
    logger = made(tmp_path, log_model_checkpoints=log_model)
    keeper = ModelCheckpoint(filename="{step}", every_n_train_steps=3, save_top_k=-1)
    data = numbers(*(float(value) for value in range(7)))
    fit(Given(), data, logger=logger, enable_checkpointing=None, callbacks=[keeper])
    assert keeper.last_model_path.startswith(str(tmp_path / "kept" / "w" / "p" / str(logger.version) / "checkpoints"))
    uploads = [one for one in operations(logger) if one["path"][:3] == ["training", "model", "checkpoints"]]
    assert {one["path"][3] for one in uploads} == {f"step={step}.ckpt" for step in kept}
    assert all(Path(one["file_globs"][0]).is_dir() for one in uploads)


def test_nothing_is_begun_on_other_ranks_and_before_a_run(tmp_path: Path) -> None:
    """A run for each rank; or calls before the run that are lost without a word."""
    logger = made(tmp_path)
    with pytest.warns(UserWarning, match="does nothing before"):
        assert isinstance(logger.experiment, SilentExperiment)
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_image("b", [1])
    logger.experiment["x"] = 2
    logger.experiment["x"].append(2)
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []


def test_a_logger_with_a_run_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A second launch would fail to pickle the trainer."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=1)
    assert pickle.loads(pickle.dumps(logger)).version == logger.version
    logger.finalize("success")


def test_what_is_no_number_or_no_policy_is_refused(tmp_path: Path) -> None:
    """A misspelt word that means no, or a text in a curve."""
    with pytest.raises(ConfigError) as raised:
        NeptuneLogger(log_model_checkpoints="every")
    assert raised.value.code == "log-model"
    with pytest.raises(LoggingError) as wrong:
        opened(tmp_path).log_metrics({"a": "b"}, step=1)
    assert wrong.value.code == "log-value"
