"""Metrics, artifacts and checkpoints in a run of MLflow."""

from __future__ import annotations

import os
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.optional import import_extra
from drivetrain.loggers.hyper_parameters import as_mapping, flatten
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.number import as_float
from drivetrain.loggers.service_logger import ServiceLogger

_STATUS = {"success": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_MAX_PARAMS = 100  # of one request
_MAX_PARAM_LENGTH = 6000
_DIGEST_TAG = "drivetrain.checkpoint"


class MLFlowLogger(ServiceLogger):
    """Writes to a run of MLflow; needs the extra `mlflow`.

    The run is made when training starts. A resumed run goes on under its id; steps that it makes again keep the values
    that they have.

    Args:
        experiment_name: The experiment; it is made if it does not exist.
        run_name: Shown for the run.
        tracking_uri: The store: `"http://..."`, `"sqlite:///mlflow.db"`, ...; by default MLflow's own choice.
        tags: Of the run.
        save_dir: Without `tracking_uri`, a directory as the store (which MLflow 3.17 takes only where
            `MLFLOW_ALLOW_FILE_STORE=true` is set); with it, where checkpoints go.
        log_model: Keep checkpoints as artifacts: `"all"` at once, `True` the best and last one when training has ended.
        prefix: Put before the name of each metric.
        artifact_location: Where a new experiment keeps its artifacts.
        run_id: A run that exists, to go on with.
        synchronous: Wait for each request; by default as MLflow does.

    Raises:
        ConfigError: `log_model` is something else.
    """

    def __init__(
        self,
        experiment_name: str = "drivetrain_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | Path | None = None,
        log_model: str | bool = False,
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool | None = None,
    ) -> None:
        super().__init__(run_id, log_model=log_model, prefix=prefix)
        self._experiment_name, self._run_name = experiment_name, run_name
        self._tags = {str(key): str(value) for key, value in (tags or {}).items()}
        self._has_own_store = tracking_uri is None and save_dir is not None
        self._tracking_uri = Path(save_dir or ".").absolute().as_uri() if self._has_own_store else tracking_uri
        self._save_dir = None if save_dir is None else str(save_dir)
        self._artifact_location = artifact_location
        self._synchronous = synchronous
        self._client: Any = None
        self._experiment_id: str | None = None
        self._kept: set[str] = set()  # checkpoints that are artifacts
        self._is_fresh = False  # the run was made here, and holds nothing

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Make the run, or go on with one; see `Logger.open`.

        Ranks: any.

        Raises:
            MissingExtraError: MLflow is not installed.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        if not is_global_zero:
            return
        if self._client is None:
            self._client = _mlflow().MlflowClient(tracking_uri=self._tracking_uri)
        if self._version is None:
            made = self._client.create_run(self.experiment_id, tags=self._tags, run_name=self._run_name)
            self._version, self._is_fresh = made.info.run_id, True
        elif not self._is_fresh:
            self._client.update_run(self._version, status="RUNNING")
        if resume_step is not None:
            self._repeated.begin(self._read_steps())
        if self._hparams:
            self._write_params()

    def finalize(self, status: str) -> None:
        """Send the checkpoints that were waited for, and say how the run ended."""
        self._end_stage()
        if self.is_writing:
            self._client.set_terminated(self._version, status=_STATUS[status])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_is_writing": False}

    # ---------------------------------------------------------------- where

    @property
    def name(self) -> str:
        """The experiment."""
        return self._experiment_name

    @property
    def run_id(self) -> str | None:
        """The run; `None` until it is made."""
        return None if self._version is None else str(self._version)

    @property
    def experiment_id(self) -> str | None:
        """Of the experiment, which is made if it does not exist; `None` where nothing is written."""
        if self._experiment_id is None and self.is_writing:
            found = self._client.get_experiment_by_name(self._experiment_name)
            self._experiment_id = (
                found.experiment_id
                if found is not None
                else self._client.create_experiment(self._experiment_name, artifact_location=self._artifact_location)
            )
        return self._experiment_id

    @property
    def save_dir(self) -> str:
        """The directory of what is beside the store."""
        if self._save_dir is None:
            return "."
        # Another directory among the experiments of a store would be taken for one.
        return str(Path(self._save_dir).absolute().parent) if self._has_own_store else self._save_dir

    @property
    def root_dir(self) -> str:
        """The directory of the experiment."""
        return os.path.join(self.save_dir, self._experiment_name)

    @property
    def experiment(self) -> Any:
        """The `MlflowClient`; where nothing is written, one that takes every call."""
        return self._client if self.is_writing else SilentExperiment()

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write values in one request; see `Logger.log_metrics`.

        Raises:
            LoggingError: A value is not a number.
        """
        if not self.is_writing:
            return
        step = self._next_step(step)
        values = {self._prefix + name: as_float(name, value) for name, value in metrics.items()}
        now, metric = int(time.time() * 1000), _mlflow().entities.Metric
        rows = [metric(name, value, now, step) for name, value in self._repeated.fresh(values, step).items()]
        if rows:
            self._is_fresh = False
            self._client.log_batch(self._version, metrics=rows, synchronous=self._synchronous)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write parameters; nested ones get names such as `optimizer/lr`. See `Logger.log_hyperparams`.

        MLflow does not change a parameter: the first value stays, and another one is said.
        """
        self._hparams.update(as_mapping(params))
        if self.is_writing:
            self._write_params()

    def _write_params(self) -> None:
        found = self._client.get_run(self._version).data.params
        values = {name: str(value)[:_MAX_PARAM_LENGTH] for name, value in flatten(self._hparams).items()}
        changed = [name for name, value in values.items() if found.get(name, value) != value]
        if changed:
            warnings.warn(f"MLflow keeps the first value of a parameter: {', '.join(changed)} stay.", stacklevel=3)
        param = _mlflow().entities.Param
        new = [param(name, value) for name, value in values.items() if name not in found]
        for part in _parts(new):
            self._client.log_batch(self._version, params=part, synchronous=self._synchronous)

    def log_image(self, key: str, images: Any, step: int | None = None) -> None:
        """Write one or several images: arrays of NumPy (height, width, channels), or images of PIL."""
        if self.is_writing:
            for image in images if isinstance(images, (list, tuple)) else [images]:
                self._client.log_image(self._version, image, key=key, step=self._step_of(step), synchronous=True)

    def log_figure(self, key: str, figure: Any, step: int | None = None) -> None:
        """Write a figure of matplotlib or plotly as the artifact `<key>/<step>.png`."""
        if self.is_writing:
            self._client.log_figure(self._version, figure, f"{key}/{self._step_of(step)}.png")

    def log_text(self, key: str, text: str, step: int | None = None) -> None:
        """Write text as the artifact `<key>/<step>.txt`."""
        if self.is_writing:
            self._client.log_text(self._version, text, f"{key}/{self._step_of(step)}.txt")

    def _keep_checkpoints(self, keeper: Any) -> None:
        for path in dict.fromkeys((keeper.best_model_path, keeper.last_model_path)):
            if path and self.is_writing and Path(path).is_dir():
                self._client.log_artifacts(self._version, str(path), _artifact_path(path))
                self._kept.add(path)

    def has_registry(self, model_name: str) -> bool:
        """True; see `Logger.has_registry`."""
        refused = [one for one in "/:'" if one in model_name]
        if refused:
            raise ConfigError(
                f"model_registry={model_name!r} holds {refused[0]!r}, which is in no name of a model in MLflow.",
                code="model-registry",
                do="Use letters, digits, '-', '_' and '.'.",
            )
        return True

    def register_model(self, model_name: str, checkpoint: str, *, directory: Path, digest: str) -> None:
        """Make a version of it whose source is the checkpoint among the run's artifacts; see `Logger.register_model`.

        Which checkpoint it is stands in the version's tag `drivetrain.checkpoint`.
        """
        if not self.is_writing:
            return
        try:
            self._client.create_registered_model(model_name)
        except _mlflow().MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        if any(one.tags.get(_DIGEST_TAG) == digest for one in self._versions_of(model_name)):
            return
        path = _artifact_path(checkpoint)
        if checkpoint not in self._kept:
            self._client.log_artifacts(self._version, str(directory), path)
        source = f"{self._client.get_run(self._version).info.artifact_uri}/{path}"
        self._client.create_model_version(model_name, source, self._version, tags={_DIGEST_TAG: digest})

    def _versions_of(self, model_name: str) -> Iterator[Any]:
        page = self._client.search_model_versions(f"name = '{model_name}'")
        yield from page
        while page.token:
            page = self._client.search_model_versions(f"name = '{model_name}'", page_token=page.token)
            yield from page

    # ---------------------------------------------------------------- state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the run that was saved, if no id was given; the one that was made for this run is deleted."""
        version = state.get("version")
        if self._is_given or self._last_step >= 0 or version in (None, self._version):
            return
        if state.get("root_dir") != os.path.abspath(self.root_dir):
            return
        if self.is_writing and self._is_fresh:
            self._client.delete_run(self._version)
        self._version, self._is_fresh = version, False

    def _read_steps(self) -> dict[str, int]:
        names = self._client.get_run(self._version).data.metrics
        return {
            name: max((one.step for one in self._client.get_metric_history(self._version, name)), default=-1)
            for name in names
        }


def _artifact_path(checkpoint: str) -> str:
    return f"checkpoints/{checkpoint.rpartition('/')[2]}"


def _parts(params: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(params), _MAX_PARAMS):
        yield params[start : start + _MAX_PARAMS]


def _mlflow() -> Any:
    return import_extra("mlflow", extra="mlflow", purpose="MLFlowLogger")
