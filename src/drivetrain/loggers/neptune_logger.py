"""Metrics, media and checkpoints in a run of Neptune."""

from __future__ import annotations

import glob
import os
import secrets
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.optional import import_extra
from drivetrain.loggers.hyper_parameters import as_mapping, flatten
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.neptune_files import ID_FIELD, id_of, is_offline, last_steps_in_service, last_steps_on_disk
from drivetrain.loggers.number import as_float
from drivetrain.loggers.service_logger import ServiceLogger

_RESTING: list[Any] = []  # runs of loggers whose stage has ended


class NeptuneLogger(ServiceLogger):
    """Writes to a run of Neptune's client 1.x; needs the extra `neptune`.

    Neptune's public service ended in March 2026: this is for a server of one's own, and for `mode="offline"`.

    The run is begun when something is logged, and left open when a stage ends, so that a test after training is in it;
    Neptune stops it when the process ends, or the next logger when it is opened. A resumed run goes on under its id;
    steps that it makes again keep the values that they have. Files of an offline run know no id: what comes after a
    resume is a directory of its own.

    Args:
        api_key: By default from Neptune's own settings (`NEPTUNE_API_TOKEN`).
        project: `"workspace/project"`; by default from Neptune's own settings (`NEPTUNE_PROJECT`).
        name: Shown for the run.
        run: A run that was begun already, or a namespace in it.
        log_model_checkpoints: Keep checkpoints as files: `"all"` at once, `True` the best and last one when training
            has ended. Offline, Neptune notes their paths and takes them when it syncs.
        prefix: The namespace of all that is written.
        save_dir: Where checkpoints go: `<save_dir>/<project>/<id>`. Neptune's own files are where
            `NEPTUNE_DATA_DIRECTORY` says.
        run_options: Further arguments of `neptune.init_run`, such as `mode`, `tags`, `with_id`, `custom_run_id`,
            `capture_stdout`.

    Raises:
        ConfigError: `log_model_checkpoints` is something else.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        project: str | None = None,
        name: str | None = None,
        run: Any = None,
        log_model_checkpoints: str | bool = True,
        prefix: str = "training",
        save_dir: str | Path = ".neptune",
        **run_options: Any,
    ) -> None:
        given = run_options.pop("with_id", None)
        self._id_argument = "with_id" if given is not None or run is not None else "custom_run_id"
        given = run_options.pop("custom_run_id", None) if given is None else given
        namespace = getattr(run, "_path", "")  # of a handler, not of a run
        self._run: Any = run.get_root_object() if run is not None else None
        super().__init__(given if run is None else id_of(self._run), log_model=log_model_checkpoints, prefix="")
        self._prefix = "".join(f"{part}/" for part in (namespace, prefix) if part)
        self._has_given_run = run is not None
        self._project, self._save_dir = project, str(save_dir)
        self._options: dict[str, Any] = {"api_token": api_key, "project": project, "name": name, **run_options}
        self._was_opened = False

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Choose the id, and ask what there is of a resumed run; see `Logger.open`.

        Ranks: any.

        Raises:
            MissingExtraError: neptune is not installed.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        self._was_opened = True
        if not is_global_zero:
            return
        _neptune()
        if self._version is None:
            self._version = secrets.token_hex(8)
        self._end_others()
        if resume_step is not None:
            run = self.experiment
            self.save()
            steps = last_steps_on_disk(str(self._version)) if is_offline(run) else last_steps_in_service(run)
            self._repeated.begin(steps)

    def _end_others(self) -> None:
        """Stop runs of loggers whose stage has ended."""
        for run in _RESTING:
            if run is not self._run:
                run.stop()
        _RESTING.clear()

    def save(self) -> None:
        """Bring what was logged to the disk, from where Neptune sends it."""
        if self._run is not None and self.is_writing and self._run.get_state() == "started":
            self._run.wait(disk_only=True)

    def finalize(self, status: str) -> None:
        """Say how the stage ended, and keep the checkpoints that were waited for. The run stays open for another."""
        self._end_stage()
        if self._run is not None and self.is_writing and self._run.get_state() == "started":
            self._run[self._prefix + "status"] = status
            self.save()
            if not self._has_given_run:
                _RESTING.append(self._run)

    def __getstate__(self) -> dict[str, Any]:
        # A run belongs to the process that began it.
        return {**self.__dict__, "_run": None, "_is_writing": False}

    # ---------------------------------------------------------------- where

    @property
    def name(self) -> str:
        """The project."""
        return self._project or "uncategorized"

    @property
    def save_dir(self) -> str:
        """The directory of all projects."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """The directory of the project."""
        return os.path.join(self._save_dir, self.name)

    @property
    def experiment(self) -> Any:
        """The `neptune.Run`; it is begun by the first use. Where nothing is written, one that takes every call."""
        if not self.is_writing:
            if not self._was_opened:
                warnings.warn(
                    "NeptuneLogger.experiment does nothing before a Trainer or Fabric has begun. log_hyperparams is "
                    "kept until then.",
                    stacklevel=2,
                )
            return SilentExperiment()
        if self._run is None or (not self._has_given_run and self._run.get_state() == "stopped"):
            self._run = _neptune().init_run(**{self._id_argument: self._version}, **self._options)
            if is_offline(self._run):
                self._run[ID_FIELD] = self._version
            self._write_hyperparams()
        return self._run

    run = experiment  # the familiar name

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append values to their series `<prefix>/<name>`; see `Logger.log_metrics`.

        Neptune keeps no value that is not finite, and says so.

        Raises:
            LoggingError: A value is not a number.
        """
        if not self.is_writing:
            return
        step = self._next_step(step)
        values = {self._prefix + name: as_float(name, value) for name, value in metrics.items()}
        for name, value in self._repeated.fresh(values, step).items():
            self.experiment[name].append(value, step=step)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write parameters as `<prefix>/hyperparams/...`, nested ones as namespaces. See `Logger.log_hyperparams`."""
        self._hparams.update(as_mapping(params))
        if self._run is not None and self.is_writing:
            self._write_hyperparams()

    def _write_hyperparams(self) -> None:
        for name, value in flatten(self._hparams).items():
            self._run[f"{self._prefix}hyperparams/{name}"] = value

    def log_image(self, key: str, images: Any, step: int | None = None) -> None:
        """Append one or several images (arrays, tensors, figures, images of PIL) to a series."""
        if self.is_writing:
            as_image = _neptune().types.File.as_image
            for image in images if isinstance(images, (list, tuple)) else [images]:
                self.experiment[self._prefix + key].append(as_image(image), step=self._step_of(step))

    def log_figure(self, key: str, figure: Any, step: int | None = None) -> None:
        """Append a figure of matplotlib to a series of images."""
        self.log_image(key, figure, step)

    def log_text(self, key: str, text: str, step: int | None = None) -> None:
        """Append text to a series."""
        if self.is_writing:
            self.experiment[self._prefix + key].append(text, step=self._step_of(step))

    def _keep_checkpoints(self, keeper: Any) -> None:
        for path in dict.fromkeys((keeper.best_model_path, keeper.last_model_path)):
            if path and self.is_writing and Path(path).is_dir():
                files = self.experiment[f"{self._prefix}model/checkpoints/{Path(path).name}"]
                files.upload_files(glob.escape(str(path)), wait=True)  # the next checkpoint may delete this one

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The id of the run, and of what kind it is."""
        return {**super().state_dict(), "id_argument": self._id_argument}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the run that was saved, if none was given."""
        if self._is_given or self._run is not None or state.get("root_dir") != os.path.abspath(self.root_dir):
            return
        self._version = state.get("version", self._version)
        self._id_argument = state.get("id_argument", self._id_argument)


def _neptune() -> Any:
    return import_extra("neptune", extra="neptune", purpose="NeptuneLogger")
