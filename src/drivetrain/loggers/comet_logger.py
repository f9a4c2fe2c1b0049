"""Metrics, media and checkpoints in an experiment of Comet."""

from __future__ import annotations

import os
import secrets
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.errors import LoggingError
from drivetrain.base.files import make_directory
from drivetrain.base.optional import import_extra
from drivetrain.loggers.comet_files import last_steps_in_service, last_steps_on_disk
from drivetrain.loggers.hyper_parameters import as_mapping, flatten
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.number import as_float
from drivetrain.loggers.service_logger import ServiceLogger

_BEGUN: set[str] = set()  # experiments that loggers of this process have begun
_WRITTEN: dict[str, dict[str, int]] = {}  # last step of each name, by experiment: its archive comes at its end


class CometLogger(ServiceLogger):
    """Writes to an experiment of Comet; needs the extra `comet`.

    The experiment is begun when something is logged, and left open when a stage ends, so that a test after training is
    in it; Comet ends it when the process ends, or when the next logger begins one: it has one in a process. One that
    the script has begun by `comet_ml.start` is taken over, unless another key is given. A resumed run goes on under its
    key; steps that it makes again keep the values that they have.

    Args:
        api_key: By default from Comet's own settings (`COMET_API_KEY`, `~/.comet.config`).
        workspace: By default the one of the key.
        project: By default Comet's own choice.
        project_name: The same as `project`.
        experiment_key: Of the experiment, 32 to 50 letters and digits: one that exists is gone on with.
        experiment_name: Shown for the experiment.
        mode: `"get_or_create"`, `"get"` (it has to exist) or `"create"` (it must not exist).
        online: By default true, unless there is a `save_dir` and no API key.
        offline: The same as `online=False`: an archive on the disk, which `comet upload` sends later.
        save_dir: Of archives, by default Comet's own choice; checkpoints go to `<save_dir>/<project>/<key>`.
        prefix: Put before the name of each metric, with an underscore.
        log_model: Keep checkpoints as models: `"all"` at once, `True` the best and last one when training has ended.
        config_options: Further arguments of `comet_ml.ExperimentConfig`, such as `name`, `tags`, `log_code`,
            `offline_directory`. Comet's own metrics (`auto_metric_logging`) are off unless they are asked for.

    Raises:
        ConfigError: `log_model` is something else.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        workspace: str | None = None,
        project: str | None = None,
        project_name: str | None = None,
        experiment_key: str | None = None,
        experiment_name: str | None = None,
        mode: str | None = None,
        online: bool | None = None,
        offline: bool = False,
        save_dir: str | Path | None = None,
        prefix: str | None = None,
        log_model: str | bool = False,
        **config_options: Any,
    ) -> None:
        super().__init__(experiment_key, log_model=log_model, prefix="")
        self._prefix = f"{prefix}_" if prefix else ""  # as Comet joins it
        self._api_key, self._workspace, self._mode = api_key, workspace, mode
        self._project = project if project is not None else project_name
        self._online = False if offline else online
        directory = config_options.pop("offline_directory", save_dir)
        self._save_dir = None if directory is None else str(directory)
        self._options: dict[str, Any] = {"auto_metric_logging": False, **config_options}
        if experiment_name is not None:
            self._options["name"] = experiment_name
        self._run: Any = None
        self._was_opened = self._has_begun = self._is_resting = False

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Choose the key, and ask what there is of a resumed run; see `Logger.open`.

        Ranks: any.

        Raises:
            MissingExtraError: comet_ml is not installed.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        self._was_opened, self._is_resting = True, False
        if not is_global_zero:
            return
        if self._run is not None and self._run.ended:
            self._run = None
        self._adopt(_comet().get_running_experiment())
        if self._version is None:
            self._version = secrets.token_hex(16)
        if resume_step is not None:
            self._has_begun = True
            self._repeated.begin(self._last_steps())

    def _adopt(self, run: Any) -> None:
        """Take over an experiment that goes on: the script's, or one of this key."""
        if self._run is not None or run is None or run.ended:
            return
        is_of_script = self._version is None and run.get_key() not in _BEGUN
        if is_of_script or run.get_key() == self._version:
            self._run, self._version = run, run.get_key()
            self._is_given = self._is_given or is_of_script

    def save(self) -> None:
        """Wait until what was logged is on the disk or sent."""
        if self._run is not None and self.is_writing and not self._run.ended:
            self._run.flush()

    def finalize(self, status: str) -> None:
        """Send the checkpoints that were waited for. The experiment stays open for another stage."""
        self._end_stage()
        self._is_resting = True
        self.save()

    def __getstate__(self) -> dict[str, Any]:
        # An experiment belongs to the process that began it.
        return {**self.__dict__, "_run": None, "_is_writing": False}

    # ---------------------------------------------------------------- where

    @property
    def name(self) -> str:
        """The project."""
        return self._project or "general"

    @property
    def save_dir(self) -> str:
        """The directory of archives and checkpoints."""
        return self._save_dir or "."

    @property
    def root_dir(self) -> str:
        """The directory of the project."""
        return os.path.join(self.save_dir, self.name)

    @property
    def experiment(self) -> Any:
        """Comet's experiment; it is begun by the first use. Where nothing is written, one that takes every call.

        Raises:
            LoggingError: It was ended while this logger still writes.
        """
        if not self.is_writing:
            if not self._was_opened:
                warnings.warn(
                    "CometLogger.experiment does nothing before a Trainer or Fabric has begun. log_hyperparams is "
                    "kept until then.",
                    stacklevel=2,
                )
            return SilentExperiment()
        if self._run is None or self._run.ended:
            if self._run is not None and not self._is_resting:
                raise LoggingError(
                    f"Comet's experiment {self._version} was ended while its CometLogger still writes: Comet ends one "
                    "when another begins in the same process.",
                    code="comet-experiment",
                    do="Use one CometLogger in a run, and call its experiment.end() only when the run is over.",
                )
            self._run = self._begin()
        return self._run

    def _begin(self) -> Any:
        comet, is_online = _comet(), self._is_online()
        running = comet.get_running_experiment()
        if running is not None and not running.ended:
            running.end()  # Comet itself would not wait for what it has not written
        if not is_online and self._save_dir is not None:
            make_directory(Path(self._save_dir).absolute())
        mode = "get_or_create" if self._mode == "create" and self._has_begun else self._mode
        run = comet.start(
            api_key=self._api_key,
            workspace=self._workspace,
            project_name=self._project,
            experiment_key=self._version,
            mode=mode,
            online=is_online,
            experiment_config=comet.ExperimentConfig(offline_directory=self._save_dir, **self._options),
        )
        self._has_begun = True
        _BEGUN.add(str(self._version))
        if self._hparams:
            run.log_parameters(flatten(self._hparams))
        return run

    def _is_online(self) -> bool:
        settings = _comet().get_config()
        configured = self._online if self._online is not None else settings["comet.start.online"]
        if configured is not None:
            return bool(configured)
        return self._save_dir is None or bool(self._api_key or settings["comet.api_key"])

    def _last_steps(self) -> dict[str, int]:
        """What there is under the key."""
        key = str(self._version)
        steps = _WRITTEN.get(key, {})
        if not self._is_online():
            directory = _comet().ExperimentConfig(offline_directory=self._save_dir).offline_directory
            return last_steps_on_disk(directory, key) | steps
        try:
            return last_steps_in_service(self._api_key, key) | steps
        except Exception as error:  # whatever a network gives: a run is worth more than its curves
            warnings.warn(f"Comet did not say what it has of {key}; steps may be there twice: {error}", stacklevel=3)
            return steps

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write values under the optimizer steps, and under `epoch` if that is among them; see `Logger.log_metrics`.

        Raises:
            LoggingError: A value is not a number; or the experiment was ended.
        """
        if not self.is_writing:
            return
        step = self._next_step(step)
        values = {name: as_float(name, value) for name, value in metrics.items()}
        epoch = values.pop("epoch", None)
        row = self._repeated.fresh({self._prefix + name: value for name, value in values.items()}, step)
        if row:
            self.experiment.log_metrics(row, step=step, epoch=None if epoch is None else int(epoch))
            _WRITTEN.setdefault(str(self._version), {}).update(dict.fromkeys(row, step))

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write parameters; nested ones get names such as `optimizer/lr`. See `Logger.log_hyperparams`."""
        self._hparams.update(as_mapping(params))
        if self._run is not None and self.is_writing:
            self.experiment.log_parameters(flatten(self._hparams))

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the layers of a model."""
        if self.is_writing:
            self.experiment.set_model_graph(model)

    def log_image(self, key: str, images: Any, step: int | None = None) -> None:
        """Write one or several images: arrays of NumPy (height, width, channels), images of PIL, or paths."""
        if self.is_writing:
            for image in images if isinstance(images, (list, tuple)) else [images]:
                self.experiment.log_image(image, name=key, step=self._step_of(step))

    def log_figure(self, key: str, figure: Any, step: int | None = None) -> None:
        """Write a figure of matplotlib or plotly."""
        if self.is_writing:
            self.experiment.log_figure(key, figure, step=self._step_of(step))

    def log_text(self, key: str, text: str, step: int | None = None) -> None:
        """Write text, with the key as its `name`."""
        if self.is_writing:
            self.experiment.log_text(text, step=self._step_of(step), metadata={"name": key})

    def _keep_checkpoints(self, keeper: Any) -> None:
        for path in dict.fromkeys((keeper.best_model_path, keeper.last_model_path)):
            if path and self.is_writing and Path(path).is_dir():
                self.experiment.log_model(Path(path).name, str(path))
                self.experiment.flush()  # the next checkpoint may delete this one

    # ---------------------------------------------------------------- state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the experiment that was saved, if no key was given."""
        if self._is_given or self._run is not None or state.get("root_dir") != os.path.abspath(self.root_dir):
            return
        self._version = state.get("version", self._version)


def _comet() -> Any:
    return import_extra("comet_ml", extra="comet", purpose="CometLogger")
