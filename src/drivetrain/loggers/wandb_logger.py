"""Metrics, media and checkpoints in a run of Weights & Biases."""

from __future__ import annotations

import os
import secrets
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.base.files import make_directory
from drivetrain.base.optional import import_extra
from drivetrain.loggers.hyper_parameters import as_mapping, plain_number
from drivetrain.loggers.logger import SilentExperiment
from drivetrain.loggers.service_logger import ServiceLogger
from drivetrain.loggers.wandb_files import last_steps

STEP = "trainer/global_step"
_REGISTRY = "wandb-registry-model/"  # there is one of this name in every organisation
_BEGUN: dict[str, Any] = {}  # open runs that loggers of this process have begun, by id
_RESTING: set[str] = set()  # those of them whose stage has ended
_WRITTEN: dict[str, dict[str, int]] = {}  # last step of each name, by run: its file comes a little after its end


class WandbLogger(ServiceLogger):
    """Writes to a run of Weights & Biases; needs the extra `wandb`.

    The run is begun when something is logged, and left open when a stage ends, so that a test after training is in it;
    wandb finishes it when the process ends, or when the next logger begins one. A run that the script has begun by
    `wandb.init` is taken over, unless an id is given. A resumed run goes on under its id; steps that it makes again
    keep the values that they have.

    Args:
        name: Shown for the run.
        save_dir: Where wandb keeps its files; checkpoints go to `<save_dir>/<project>/<id>`.
        version: The same as `id`.
        offline: Write to the disk only; `wandb sync` sends it later.
        dir: The same as `save_dir`.
        id: Of the run: one that exists is gone on with.
        project: By default wandb's own choice.
        log_model: Keep checkpoints as artifacts: `"all"` at once, `True` the best and last one when training has ended.
        experiment: A run that was begun already.
        prefix: Put before the name of each metric.
        checkpoint_name: Of the artifact; `model-<id>` by default.
        init_options: Further arguments of `wandb.init`, such as `entity`, `group`, `job_type`, `tags`, `settings`.

    Raises:
        ConfigError: `log_model` is something else.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | Path = ".",
        version: str | None = None,
        offline: bool = False,
        dir: str | Path | None = None,
        id: str | None = None,
        project: str | None = None,
        log_model: str | bool = False,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        **init_options: Any,
    ) -> None:
        run_id = experiment.id if experiment is not None else (version if version is not None else id)
        super().__init__(run_id, log_model=log_model, prefix=prefix)
        self._project = project
        self._save_dir = str(dir if dir is not None else save_dir)
        self._run = experiment
        self._checkpoint_name = checkpoint_name
        self._options: dict[str, Any] = {"name": name, "project": project, "resume": "allow", **init_options}
        if offline:
            self._options["mode"] = "offline"
        self._may_be_online = self._options.get("mode") not in ("offline", "dryrun", "disabled")
        if experiment is not None:
            self._may_be_online = not (experiment.offline or experiment.disabled)
        self._watched: list[tuple[Any, dict[str, Any]]] = []
        self._was_opened = self._is_resumed = self._has_begun = False

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Choose the id; see `Logger.open`.

        Ranks: any.

        Raises:
            MissingExtraError: wandb is not installed.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        self._was_opened = True
        if not is_global_zero:
            return
        self._adopt(_wandb().run)
        if self._version is None:
            self._version = secrets.token_hex(4)
        self._end_others()
        if resume_step is not None:
            self._is_resumed = True
            on_disk = last_steps(self._save_dir, str(self._version), step_name=STEP)
            self._repeated.begin({**on_disk, **_WRITTEN.get(str(self._version), {})})
        for model, options in self._watched:
            self.experiment.watch(model, **options)
        self._watched.clear()

    def _adopt(self, run: Any) -> None:
        """Take over a run that the script has begun; one of another logger stays that one's."""
        if self._run is None and run is not None and run.id not in _BEGUN and self._version in (None, run.id):
            self._run, self._version, self._is_given = run, run.id, True

    def _end_others(self) -> None:
        """Finish runs of loggers whose stage has ended."""
        for run_id in [one for one in _RESTING if _BEGUN[one] is not self._run]:
            _BEGUN.pop(run_id).finish()
            _RESTING.discard(run_id)
        _RESTING.discard(str(self._version))

    def finalize(self, status: str) -> None:
        """Send the checkpoints that were waited for. The run stays open for another stage."""
        self._end_stage()
        if self._version in _BEGUN:
            _RESTING.add(str(self._version))

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
        """Where wandb keeps its files."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """The directory of the project."""
        return os.path.join(self._save_dir, self.name)

    @property
    def experiment(self) -> Any:
        """The `wandb.Run`; it is begun by the first use. Where nothing is written, one that takes every call."""
        if not self.is_writing:
            if not self._was_opened:
                warnings.warn(
                    "WandbLogger.experiment does nothing before a Trainer or Fabric has begun. log_hyperparams and "
                    "watch are kept until then.",
                    stacklevel=2,
                )
            return SilentExperiment()
        if self._run is None or (self._has_begun and _BEGUN.get(str(self._version)) is not self._run):
            self._run = self._begin()
        return self._run

    def _begin(self) -> Any:
        wandb = _wandb()
        options = {**self._options, "id": self._version, "dir": self._save_dir}
        self._end_others()
        if wandb.run is not None:  # of the script, or of a second logger
            options.setdefault("reinit", "create_new")
        make_directory(Path(self._save_dir).absolute())
        run = _BEGUN[str(self._version)] = wandb.init(**options)
        self._has_begun = True
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP, step_sync=True)
        if self._is_resumed and run.resumed:  # online: what came there is what counts
            self._repeated.cap(int(run.summary.get(STEP, -1)))
        if self._hparams:
            run.config.update(self._hparams, allow_val_change=True)
        return run

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write a row, with the optimizer steps as `trainer/global_step`; see `Logger.log_metrics`.

        Values that are no numbers (`wandb.Image`, `wandb.Histogram`, ...) are given to wandb as they are.
        """
        if not self.is_writing:
            return
        run = self.experiment
        step = self._next_step(step)
        row = {self._prefix + name: plain_number(value) for name, value in metrics.items()}
        row = self._repeated.fresh(row, step)
        if row:
            run.log({**row, STEP: step})
            _WRITTEN.setdefault(str(self._version), {}).update(dict.fromkeys(row, step))

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Add to the run's config; see `Logger.log_hyperparams`."""
        self._hparams.update(as_mapping(params))
        if self._run is not None and self.is_writing:
            self._run.config.update(self._hparams, allow_val_change=True)

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **options: Sequence[Any]) -> None:
        """Write images (arrays, tensors, figures, paths).

        Args:
            key: The name.
            images: One or several.
            step: Optimizer steps done; by default those of the last row.
            options: Arguments of `wandb.Image`, one value for each image: `caption=["a", "b"]`.
        """
        if self.is_writing:
            made = [
                _wandb().Image(image, **{name: values[index] for name, values in options.items()})
                for index, image in enumerate(images)
            ]
            self.log_metrics({key: made}, step=self._step_of(step))

    def log_figure(self, key: str, figure: Any, step: int | None = None) -> None:
        """Write a figure of matplotlib as an image."""
        self.log_image(key, [figure], step)

    def log_table(
        self,
        key: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Write a table of text, numbers or media: columns and rows, or a data frame."""
        if self.is_writing:
            table = _wandb().Table(
                columns=None if columns is None else list(columns),
                data=None if data is None else [list(row) for row in data],
                dataframe=dataframe,
            )
            self.log_metrics({key: table}, step=self._step_of(step))

    log_text = log_table  # the familiar name for text in rows

    def watch(self, model: Any, log: str | None = "gradients", log_freq: int = 100, log_graph: bool = True) -> None:
        """Let wandb hook into a model: histograms of gradients or parameters, and its graph; see `wandb.Run.watch`."""
        options = {"log": log, "log_freq": log_freq, "log_graph": log_graph}
        if self.is_writing:
            self.experiment.watch(model, **options)
        elif not self._was_opened:
            self._watched.append((model, options))

    def _keep_checkpoints(self, keeper: Any) -> None:
        if not self.is_writing:
            return
        paths = {keeper.best_model_path: "best", keeper.last_model_path: "latest"}
        if keeper.best_model_path == keeper.last_model_path:
            paths = {keeper.last_model_path: "latest", "": "best"}
        for path, alias in paths.items():
            if path and Path(path).is_dir():
                self._keep(path, alias)

    @property
    def _artifact_name(self) -> str:
        return self._checkpoint_name or f"model-{self._version}"

    def _keep(self, directory: str | Path, alias: str) -> Any:
        artifact = _wandb().Artifact(self._artifact_name, type="model")
        artifact.add_dir(str(directory))
        return self.experiment.log_artifact(artifact, aliases=[alias])

    def has_registry(self, model_name: str) -> bool:
        """The run was not given as one that is offline; see `Logger.has_registry`."""
        return self._may_be_online

    def register_model(self, model_name: str, checkpoint: str, *, directory: Path, digest: str) -> None:
        """Keep it as an artifact, and link that to a collection; see `Logger.register_model`.

        The collection is `model_name` in the registry Model, or what a name with `/` leads to, such as
        `"wandb-registry-vision/digits"`. The service keeps equal artifacts, and equal links, once. wandb cannot link in
        a run that is offline: that is a warning.
        """
        if not self.is_writing:
            return
        run, target = self.experiment, model_name if "/" in model_name else _REGISTRY + model_name
        artifact = self._keep(directory, "best")
        if run.disabled:
            warnings.warn(f"wandb is disabled: nothing is linked to {target}.", stacklevel=2)
        elif run.offline:
            warnings.warn(
                f"The run {run.id} is offline, and wandb links nothing to {target} from there. After `wandb sync`: "
                f"wandb.Api().artifact('{run.project}/{self._artifact_name}:best').link('{target}')",
                stacklevel=2,
            )
        else:
            run.link_artifact(artifact, target)

    # ---------------------------------------------------------------- state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the run that was saved, if no id was given."""
        if self._is_given or self._run is not None or state.get("root_dir") != os.path.abspath(self.root_dir):
            return
        self._version = state.get("version", self._version)


def _wandb() -> Any:
    return import_extra("wandb", extra="wandb", purpose="WandbLogger")
