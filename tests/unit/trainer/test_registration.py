"""The best checkpoint of a training becomes a version of a model, read back by MLflow's own client."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from drivetrain import (
    Callback,
    CheckpointError,
    ConfigError,
    CSVLogger,
    LoggingError,
    MLFlowLogger,
    ModelCheckpoint,
    PreemptedExit,
    Trainer,
    Tuner,
    WandbLogger,
)
from drivetrain.checkpoint.manifest import MANIFEST_NAME
from tests import stores
from tests.unit.trainer.runs import QUIET, Given, fit, loader, numbers
from tests.unit.tuner.test_lr_find import Rated

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def a_directory_is_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow 3.17 asks for a database otherwise, which needs more packages; its own one is in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def logger_in(root: Path, kind: str = "directory", **options: Any) -> MLFlowLogger:
    """A logger with a store of this machine."""
    if kind == "directory":
        return MLFlowLogger(save_dir=root / "mlruns", **options)
    pytest.importorskip("sqlalchemy")
    return MLFlowLogger(
        tracking_uri=f"sqlite:///{root}/mlflow.db", artifact_location=str(root / "artifacts"), save_dir=root, **options
    )


def train(root: Path, *values: float, logger: Any = None, module: Any = None, **options: Any) -> MLFlowLogger:
    """Train with each step's loss given, and keep the checkpoint of the least one."""
    logger = logger or logger_in(root)
    keeper = ModelCheckpoint(root / "kept", "{step}", monitor="loss", every_n_train_steps=1, save_last=True)
    settings = {**QUIET, "enable_checkpointing": None, "logger": logger, "max_epochs": 1, "log_every_n_steps": 1}
    own = options.pop("callbacks", [])
    resume = options.pop("resume", None)
    trainer = Trainer(**{**settings, "model_registry": "net", **options, "callbacks": [keeper, *own]})
    trainer.fit(module or Given(), numbers(*values), resume=resume)
    return logger  # type: ignore[no-any-return]


def versions_of(logger: MLFlowLogger, name: str = "net") -> list[Any]:
    found = logger.experiment.search_model_versions(f"name = '{name}'")
    return sorted(found, key=lambda one: int(one.version))


def load(version: Any, root: Path) -> None:
    """Download a version and load it as any checkpoint."""
    place = mlflow.artifacts.download_artifacts(version.source, dst_path=str(root / "copy"))
    gc.collect()  # ends the threads that have downloaded
    Given.load_from_checkpoint(place)


def step_of(version: Any) -> int:
    return int(Path(version.source).stem.removeprefix("step="))


class Raising(Given):
    """Fails in its third step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise RuntimeError("third")
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, to MLflow
@pytest.mark.parametrize("kind", ["directory", "database"])
@pytest.mark.parametrize("log_model", [False, True, "all"])
def test_the_best_checkpoint_is_one_version_that_can_be_loaded(tmp_path: Path, kind: str, log_model: Any) -> None:
    """A registry of every save, of the last one, or of what nothing can read."""
    logger = train(tmp_path, 3.0, 1.0, 2.0, logger=logger_in(tmp_path, kind, log_model=log_model))
    (version,) = versions_of(logger)
    assert (step_of(version), version.run_id, version.status) == (2, logger.run_id, "READY")
    load(version, tmp_path)
    kept = {"False": {2}, "True": {2, 3}, "all": {1, 2, 3}}[str(log_model)]
    found = logger.experiment.list_artifacts(logger.run_id, "checkpoints")
    assert {int(Path(one.path).stem.removeprefix("step=")) for one in found} == kept


def test_the_same_checkpoint_is_registered_once(tmp_path: Path) -> None:
    """A second version after each resume; or a better model that never comes into the registry."""
    train(tmp_path, 3.0, 1.0, 2.0)
    logger = train(tmp_path, 3.0, 1.0, 2.0, resume="auto")  # over already
    assert [step_of(one) for one in versions_of(logger)] == [2]
    logger = train(tmp_path, 3.0, 1.0, 2.0, resume="auto", max_epochs=2)  # its best is as good as the one before
    assert [step_of(one) for one in versions_of(logger)] == [2]
    logger = train(tmp_path, 0.5, 1.0, 2.0, resume="auto", max_epochs=3)
    assert [step_of(one) for one in versions_of(logger)] == [2, 7]


def test_versions_are_found_over_all_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with many versions would get the same one again."""
    logger = train(tmp_path, 1.0)
    digest = versions_of(logger)[0].tags["drivetrain.checkpoint"]
    for _ in range(3):
        logger.experiment.create_model_version("net", "elsewhere", logger.run_id)
    search = logger.experiment.search_model_versions
    monkeypatch.setattr(logger.experiment, "search_model_versions", lambda name, **page: search(name, 1, **page))
    logger.register_model("net", "any", directory=tmp_path, digest=digest)
    monkeypatch.undo()
    assert len(versions_of(logger)) == 4


def test_a_training_that_did_not_come_to_its_end_registers_nothing(tmp_path: Path) -> None:
    """A model in the registry that is half trained; or that is there twice once the training went on."""
    logger = logger_in(tmp_path)
    with pytest.raises(RuntimeError, match="third"):
        train(tmp_path, 3.0, 1.0, 2.0, logger=logger, module=Raising())
    assert versions_of(logger) == []

    class Told(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(PreemptedExit):
        train(tmp_path, 3.0, 1.0, 2.0, logger=logger, callbacks=[Told()])
    assert versions_of(logger) == []
    logger = train(tmp_path, 3.0, 1.0, 2.0, resume="auto")
    assert [step_of(one) for one in versions_of(logger)] == [2]


def test_a_search_and_a_quick_look_register_nothing(tmp_path: Path) -> None:
    """Models that were trained for some steps, by a copy of the trainer."""
    logger = logger_in(tmp_path)
    options = {**QUIET, "enable_checkpointing": None, "logger": logger, "default_root_dir": tmp_path}
    Tuner(Trainer(**options, model_registry="net")).lr_find(Rated(), loader(), num_training=3)
    Trainer(**options, model_registry="net", fast_dev_run=True).fit(Rated(), loader())
    logger.open(is_global_zero=True)
    assert versions_of(logger) == []


def test_a_checkpoint_of_a_store_is_registered_from_there(tmp_path: Path) -> None:
    """A run whose checkpoints are in a store would register an empty folder."""
    stores.register()
    logger = logger_in(tmp_path, log_model=True)
    keeper = ModelCheckpoint(f"shared://{tmp_path}/kept", "{step}")
    fit(Given(), numbers(1.0), logger=logger, enable_checkpointing=None, callbacks=[keeper], model_registry="net")
    (version,) = versions_of(logger)
    load(version, tmp_path)


def test_what_cannot_be_registered_is_said_after_the_training(tmp_path: Path) -> None:
    """A training that ends as if its model were there; or a damaged one that is."""
    with pytest.raises(LoggingError, match="could not register .*step=1.ckpt as '..'") as raised:
        train(tmp_path, 1.0, model_registry="..")
    assert raised.value.code == "model-registry" and (tmp_path / "kept" / "step=1.ckpt").is_dir()

    class Damage(Callback):
        runs_last = True

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            (Path(trainer.checkpoint_callback.best_model_path) / MANIFEST_NAME).write_text("{}")

    with pytest.raises(CheckpointError) as torn:
        train(tmp_path / "torn", 1.0, callbacks=[Damage()])
    assert torn.value.code == "checkpoint-corrupt"
    with pytest.warns(UserWarning, match="Nothing is registered as 'net': no checkpoint was kept"):
        keeper = ModelCheckpoint(tmp_path / "none", save_top_k=0)
        fit(Given(), numbers(1.0), logger=logger_in(tmp_path), enable_checkpointing=None, callbacks=[keeper],
            model_registry="net")  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logger": CSVLogger("logs")}, "no logger has a registry of models: CSVLogger"),
        ({"logger": False}, "there is no logger"),
        ({"logger": [CSVLogger("logs"), WandbLogger(offline=True)]}, "CSVLogger, WandbLogger"),
        ({"logger": WandbLogger(mode="disabled")}, "WandbLogger"),
        ({"logger": MLFlowLogger(), "enable_checkpointing": False}, "no checkpoint is kept"),
        ({"logger": MLFlowLogger(), "model_registry": "team/net"}, "holds '/'"),
        ({"logger": MLFlowLogger(), "model_registry": " "}, "no name of a model"),
        ({"logger": MLFlowLogger(), "model_registry": 3}, "no name of a model"),
    ],
)
def test_a_trainer_that_could_register_nothing_is_not_made(options: dict[str, Any], says: str) -> None:
    """The training would end with no model in the registry, or an error that could have been known."""
    given = {"accelerator": "cpu", "model_registry": "net", **options}
    with pytest.raises(ConfigError, match=says) as raised:
        Trainer(**given)
    assert raised.value.code == "model-registry"
    Trainer(**{**given, "model_registry": None})
    with pytest.raises(ConfigError) as bare:
        Trainer(barebones=True, model_registry="net")
    assert bare.value.code == "barebones"


def test_one_logger_with_a_registry_is_enough() -> None:
    """A file of values beside it would be refused."""
    trainer = Trainer(accelerator="cpu", logger=[CSVLogger("logs"), MLFlowLogger()], model_registry="net")
    assert trainer.model_registry == "net"
    assert Trainer(accelerator="cpu", logger=WandbLogger(), model_registry="wandb-registry-a/b").model_registry
