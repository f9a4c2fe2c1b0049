"""Runs of wandb in its offline mode, read back from its files."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain import ConfigError, ModelCheckpoint, Trainer, WandbLogger
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.repeated_steps import RepeatedSteps
from drivetrain.loggers.wandb_files import last_steps, records_of, run_files
from drivetrain.loggers.wandb_logger import _BEGUN, _RESTING, _WRITTEN, STEP
from tests.unit.loggers.wandb_files import config_of, rows_of
from tests.unit.trainer.runs import QUIET, Given, fit, numbers

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """wandb serves runs in a process of its own, which is to end with the test; nothing goes to a network."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    before = dict(os.environ)
    yield
    finish()
    for name in set(os.environ) - set(before):
        del os.environ[name]


def finish() -> None:
    """End all runs, as the end of the process does."""
    for run in [*_BEGUN.values(), *([wandb.run] if wandb.run is not None else [])]:
        run.finish()
    _BEGUN.clear()
    _RESTING.clear()
    _WRITTEN.clear()
    wandb.teardown()


def opened(root: Path, *, resume_step: int | None = None, **options: Any) -> WandbLogger:
    logger = WandbLogger(save_dir=root, **{"project": "p", **options})
    logger.open(is_global_zero=True, resume_step=resume_step)
    return logger


def steps_of(root: Path, name: str) -> list[tuple[int, float]]:
    return [(row[STEP], row[name]) for row in rows_of(root) if name in row]


def test_rows_have_the_optimizer_step(tmp_path: Path) -> None:
    """Curves over wandb's own count of rows, or other values than were logged."""
    logger = opened(tmp_path, prefix="x")
    logger.log_metrics({"loss": torch.tensor(0.5)}, step=10)
    logger.log_metrics({"loss": 0.25, "n": np.int64(3)}, step=20)
    logger.finalize("success")
    finish()
    assert rows_of(tmp_path) == [{"x-loss": 0.5, STEP: 10}, {"x-loss": 0.25, "x-n": 3, STEP: 20}]


def test_hyperparameters_from_before_and_after_the_start_are_in_the_config(tmp_path: Path) -> None:
    """Runs that cannot be compared."""
    logger = WandbLogger(save_dir=tmp_path, project="p")
    logger.log_hyperparams({"seed": 1})
    logger.open(is_global_zero=True)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_hyperparams({"net": {"lr": 0.5}})
    finish()
    config = config_of(tmp_path)
    assert (config["seed"], config["net"]) == (1, {"lr": 0.5})


def test_a_second_stage_goes_on_in_the_same_run(tmp_path: Path) -> None:
    """A test after training in a run of its own."""
    logger = opened(tmp_path)
    logger.log_metrics({"loss": 1}, step=1)
    logger.finalize("success")
    logger.log_metrics({"loss": 2}, step=1)
    logger.finalize("success")
    finish()
    assert [row["loss"] for row in rows_of(tmp_path)] == [1, 2] and len(run_files(tmp_path, "*")) == 1


def test_two_loggers_one_after_the_other_have_a_run_each(tmp_path: Path) -> None:
    """In a cross-validation all folds would be one run."""
    for fold in range(2):
        logger = opened(tmp_path)
        logger.log_metrics({"fold": fold}, step=1)
        logger.finalize("success")
        del logger
    finish()
    ids = [path.stem.removeprefix("run-") for path in run_files(tmp_path, "*")]
    assert sorted([row["fold"] for row in rows_of(tmp_path, run_id)] for run_id in ids) == [[0], [1]]


def test_two_loggers_of_one_run_have_a_run_each(tmp_path: Path) -> None:
    """One of the projects would get nothing, or everything twice."""
    left, right = opened(tmp_path / "left"), opened(tmp_path / "right")
    for logger in (left, right, left):
        logger.log_metrics({"a": 1}, step=1)
    finish()
    assert (len(rows_of(tmp_path / "left")), len(rows_of(tmp_path / "right"))) == (2, 1)


def test_a_run_of_the_script_is_taken_over(tmp_path: Path) -> None:
    """In a sweep the agent's run would stay empty."""
    run = wandb.init(dir=str(tmp_path), project="p")
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=1)
    assert logger.version == run.id
    finish()
    assert steps_of(tmp_path, "a") == [(1, 1)]


def test_a_resumed_run_has_each_step_once_under_its_id(tmp_path: Path) -> None:
    """A run of its own after each crash, or two rows for the steps between the last checkpoint and the crash."""
    values = [float(value) for value in range(1, 9)]
    keeper: dict[str, Any] = {"filename": "{step}", "every_n_train_steps": 3, "save_top_k": -1}

    class Crash(Given):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise RuntimeError("crash")
            return super().training_step(batch, batch_idx)

    def run(module: Given, **options: Any) -> WandbLogger:
        logger = WandbLogger(save_dir=tmp_path, project="p")
        saving = {"enable_checkpointing": None, "callbacks": [ModelCheckpoint(tmp_path / "kept", **keeper)]}
        fit(module, numbers(*values), logger=logger, log_every_n_steps=1, **saving, **options)
        return logger

    with pytest.raises(RuntimeError, match="crash"):
        run(Crash())
    logger = WandbLogger(save_dir=tmp_path, project="p")
    trainer = Trainer(**{**QUIET, "logger": logger}, max_epochs=1, log_every_n_steps=1)
    trainer.fit(Given(), numbers(*values), ckpt_path=tmp_path / "kept" / "step=3.ckpt")
    finish()
    assert {path.name for path in run_files(tmp_path, "*")} == {f"run-{logger.version}.wandb"}
    assert len(run_files(tmp_path, "*")) == 2
    assert steps_of(tmp_path, "loss") == [(step, float(step)) for step in range(1, 9)]


def test_what_was_not_written_of_the_last_step_is_written_when_it_comes_again(tmp_path: Path) -> None:
    """A crash between a step's row and its validation would leave a hole."""
    first = opened(tmp_path, id="r")
    first.log_metrics({"loss": 1}, step=1)
    first.log_metrics({"loss": 2}, step=2)
    first.finalize("failed")
    finish()  # from here on only the disk tells
    second = opened(tmp_path, id="r", resume_step=1)
    second.log_metrics({"loss": 2, "val": 5}, step=2)
    second.log_metrics({"loss": 3}, step=3)
    second.finalize("success")
    second.log_metrics({"loss": 4}, step=3)  # a further stage repeats nothing
    finish()
    assert steps_of(tmp_path, "loss") == [(1, 1), (2, 2), (3, 3), (3, 4)]
    assert steps_of(tmp_path, "val") == [(2, 5)]


def test_a_long_run_is_read_back_over_all_blocks(tmp_path: Path) -> None:
    """A resumed run would take for missing what begins in one block of the file and ends in the next."""
    logger = opened(tmp_path, id="r")
    names = [f"a-rather-long-name-of-a-metric-{number}" for number in range(50)]
    for step in range(1, 51):
        logger.log_metrics({name: step + 0.125 for name in names if step < 50}, step=step)
    finish()
    assert run_files(tmp_path, "r")[0].stat().st_size > 3 * 32768
    found = last_steps(tmp_path, "r", step_name=STEP)
    assert {name: found[name] for name in [*names, STEP]} == dict.fromkeys([*names, STEP], 49)


@pytest.mark.parametrize(("known", "cap", "left"), [({}, 3, []), ({"a": 3}, 9, ["b"]), ({"a": 3}, 2, ["a", "b"])])
def test_what_the_service_does_not_have_is_sent_again(known: dict[str, int], cap: int, left: list[str]) -> None:
    """A row that was lost with the machine would stay missing."""
    repeated = RepeatedSteps()
    repeated.begin(known)
    repeated.cap(cap)
    assert list(repeated.fresh({"a": 1, "b": 2}, 3)) == left


def test_images_figures_and_tables_are_written(tmp_path: Path) -> None:
    """Media that are dropped, or that need wandb's own calls."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=4)
    logger.log_image("image", [np.zeros((4, 4, 3), dtype=np.uint8)] * 2, caption=["left", "right"])
    logger.log_figure("figure", pyplot.figure(figsize=(1, 1)), step=5)
    logger.log_text("text", columns=["word"], data=[["yes"]], step=6)
    finish()
    kinds = [(row[STEP], name, row[name]) for row in rows_of(tmp_path) for name in row if name.endswith("._type")]
    assert kinds == [
        (4, "image._type", "images/separated"),
        (5, "figure._type", "images/separated"),
        (6, "text._type", "table-file"),
    ]


def test_checkpoints_are_kept_as_artifacts(tmp_path: Path) -> None:
    """`log_model` that does nothing."""
    logger = WandbLogger(save_dir=tmp_path, project="p", log_model="all")
    keeper = ModelCheckpoint(every_n_train_steps=2, save_top_k=-1)
    fit(Given(), numbers(1.0, 2.0, 3.0, 4.0), logger=logger, enable_checkpointing=None, callbacks=[keeper])
    assert str(tmp_path / "p" / str(logger.version) / "checkpoints") in keeper.last_model_path
    finish()
    (path,) = run_files(tmp_path, "*")
    records = list(records_of(path))
    artifacts = [one.request.log_artifact.artifact for one in records] + [one.artifact for one in records]
    assert {one.name for one in artifacts if one.name} == {f"model-{logger.version}"}


def train_and_register(logger: WandbLogger, root: Path, name: str = "net") -> None:
    """Three steps, the second of which has the least loss."""
    keeper = ModelCheckpoint(root / "kept", "{step}", monitor="loss", every_n_train_steps=1)
    fit(
        Given(), numbers(3.0, 1.0, 2.0), logger=logger, enable_checkpointing=None, callbacks=[keeper],
        log_every_n_steps=1, model_registry=name,
    )  # fmt: skip


class Online:
    """Stands in for a `wandb.Run` that is online: there is no service to link in. It notes what it is asked for."""

    id, offline, disabled = "r", False, False

    def __init__(self) -> None:
        self.kept: list[tuple[str, list[str]]] = []
        self.links: list[tuple[Any, str]] = []

    def log(self, row: dict[str, Any]) -> None:
        pass

    def log_artifact(self, artifact: Any, aliases: list[str]) -> Any:
        (step,) = (json.loads(Path(one.local_path).read_text())["step"] for one in _manifests_of(artifact))
        self.kept.append((f"{artifact.type} of step {step}", aliases))
        return artifact

    def link_artifact(self, artifact: Any, target_path: str) -> None:
        self.links.append((artifact.name, target_path))


def _manifests_of(artifact: Any) -> list[Any]:
    return [one for one in artifact.manifest.entries.values() if one.path == MANIFEST_NAME]


@pytest.mark.parametrize(
    ("name", "target"), [("net", "wandb-registry-model/net"), ("team/model-registry/net", "team/model-registry/net")]
)
def test_the_best_checkpoint_is_linked_to_a_collection(tmp_path: Path, name: str, target: str) -> None:
    """`model_registry` that keeps an artifact and registers nothing, or registers another checkpoint."""
    run = Online()
    train_and_register(WandbLogger(save_dir=tmp_path, project="p", experiment=run), tmp_path, name)
    assert run.kept == [("model of step 2", ["best"])] and run.links == [("model-r", target)]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("offline", r"artifact\('p/model-r:best'\).link\('wandb-registry-model/net'\)"),
        ("disabled", "disabled: nothing is linked to wandb-registry-model/net"),
    ],
)
def test_a_run_that_turns_out_to_be_offline_says_that_nothing_is_registered(
    tmp_path: Path, mode: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb's bare NotImplementedError at the end of a training; or no word of what is missing."""
    monkeypatch.setenv("WANDB_MODE", mode)
    logger = WandbLogger(save_dir=tmp_path, project="p", id="r")
    with pytest.warns(UserWarning, match=says):
        train_and_register(logger, tmp_path)
    finish()
    assert len(run_files(tmp_path, "r")) == (mode == "offline")
    for path in run_files(tmp_path, "r"):  # for `wandb sync`
        artifacts = [one.request.log_artifact.artifact for one in records_of(path)]
        artifacts += [one.artifact for one in records_of(path)]
        assert [one.name for one in artifacts if one.name] == ["model-r"]


def test_nothing_is_begun_on_other_ranks_and_before_a_run(tmp_path: Path) -> None:
    """A run for each rank; or calls before the run that are lost without a word."""
    logger = WandbLogger(save_dir=tmp_path, project="p")
    with pytest.warns(UserWarning, match="does nothing before"):
        assert isinstance(logger.experiment, SilentExperiment)
    logger.open(is_global_zero=False)
    logger.log_metrics({"a": 1}, step=1)
    logger.log_image("b", [1])
    logger.experiment.anything(1)["x"] = 2
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == [] and wandb.run is None


def test_a_logger_with_a_run_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """A second launch would fail to pickle the trainer."""
    logger = opened(tmp_path)
    logger.log_metrics({"a": 1}, step=1)
    assert pickle.loads(pickle.dumps(logger)).version == logger.version


def test_an_unknown_log_model_is_refused() -> None:
    """A misspelt word that means no."""
    with pytest.raises(ConfigError) as raised:
        WandbLogger(log_model="every")
    assert raised.value.code == "log-model"
