"""Metrics, hyperparameters and graphs as TensorBoard events."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from drivetrain.base.files import make_directory, write_text_atomically
from drivetrain.base.optional import import_extra
from drivetrain.base.rng import forked_rng
from drivetrain.base.tree import move_to
from drivetrain.loggers.hyper_parameters import as_mapping, flatten, to_yaml
from drivetrain.loggers.logger import Logger, SilentExperiment
from drivetrain.loggers.number import as_float
from drivetrain.loggers.run_directory import RunDirectory


class TensorBoardLogger(Logger):
    """Writes events to `<save_dir>/<name>/version_<n>`; needs the extra `tensorboard`.

    A resumed run goes on in its directory: events after the step from which it goes on are hidden.

    Args:
        save_dir: The directory of all experiments.
        name: The experiment.
        version: A number or a name; by default the next free number, chosen by rank 0 when the run starts.
        log_graph: Write the model's graph when training starts; it is traced with `example_input_array`.
        default_hp_metric: Give runs without a metric of their own `hp_metric`, so that the dashboard lists them.
        prefix: Put before the name of each metric.
        sub_dir: Events go to this directory below the run's.
        writer_options: Arguments of `torch.utils.tensorboard.SummaryWriter`.
    """

    def __init__(
        self,
        save_dir: str | Path,
        name: str | None = "drivetrain_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | Path | None = None,
        **writer_options: Any,
    ) -> None:
        self._name = name or ""
        self._directory = RunDirectory(save_dir, self._name, version)
        self._logs_graph = log_graph
        self._hp_metrics: tuple[dict[str, Any], int] = ({"hp_metric": -1} if default_hp_metric else {}, 0)
        self._is_summary_due = False
        self._prefix = f"{prefix}-" if prefix else ""
        self._sub_dir = sub_dir
        self._writer_options = writer_options
        self._hparams: dict[str, Any] = {}
        self._writer: Any = None
        self._last_step = -1
        self._resume_step: int | None = None
        self._is_resumed = False
        self._values: dict[str, float] = {}  # of the last step
        self._saved: dict[str, Any] | None = None

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Choose and make the directory; see `Logger.open`.

        Ranks: any.

        Raises:
            MissingExtraError: TensorBoard is not installed.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        if not is_global_zero:
            return
        _tensorboard()
        self._close_writer()
        self._directory.make()
        if resume_step is not None:
            self._resume_step = self._last_step = resume_step
            self._is_resumed = True
        if self._hparams:
            self._write_yaml()

    def save(self) -> None:
        """Flush the events."""
        self._write_summary()
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Flush and close the file; what is logged later begins another one in the same directory."""
        self.save()
        self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        # The writer has a thread, and belongs to the process that made it.
        return {**self.__dict__, "_writer": None}

    # ---------------------------------------------------------------- where

    @property
    def name(self) -> str:
        """The experiment."""
        return self._name

    @property
    def version(self) -> int | str | None:
        """The run; `None` until it is chosen."""
        return self._directory.version

    @version.setter
    def version(self, version: int | str | None) -> None:
        self._directory.version = version

    @property
    def save_dir(self) -> str:
        """The directory of all experiments."""
        return self._directory.save_dir

    @property
    def root_dir(self) -> str:
        """The directory of the experiment."""
        return self._directory.root

    @property
    def log_dir(self) -> str | None:
        """The directory of the run; `None` until the version is chosen."""
        path = self._directory.path
        return path if path is None or self._sub_dir is None else str(Path(path) / self._sub_dir)

    @property
    def earlier_log_dirs(self) -> list[str]:
        """See `Logger.earlier_log_dirs`."""
        return [str(Path(path) / (self._sub_dir or "")) for path in self._directory.earlier()]

    @property
    def experiment(self) -> Any:
        """The `SummaryWriter`, to add images and histograms; where nothing is written, one that takes every call."""
        if not self.is_writing:
            return SilentExperiment()
        if self._writer is None:
            options = dict(self._writer_options)
            saved, self._saved = self._saved, None
            if self._resume_step is not None:
                # Of the step itself, what was written after the checkpoint is written again, and the rest from here.
                options.setdefault("purge_step", self._resume_step + (saved is None))
            self._writer = _tensorboard().SummaryWriter(log_dir=self.log_dir, **options)
            if saved is not None and saved["step"] == self._resume_step:
                for name, value in saved["values"].items():
                    self._writer.add_scalar(name, value, saved["step"])
                self._values.update(saved["values"])
            self._resume_step = None  # what a second file begins with must not hide what the first one holds
        return self._writer

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write scalars; a mapping as value becomes several lines in one chart. See `Logger.log_metrics`.

        Raises:
            LoggingError: A value is not a number.
        """
        if not self.is_writing:
            return
        self._write_summary()
        step = self._last_step + 1 if step is None else int(step)
        experiment = self.experiment
        if step != self._last_step:
            self._values = {}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                scalars = {key: as_float(f"{name}/{key}", one) for key, one in value.items()}
                experiment.add_scalars(self._prefix + name, scalars, step)
            else:
                self._values[self._prefix + name] = number = as_float(name, value)
                experiment.add_scalar(self._prefix + name, number, step)
        self._last_step = step

    def log_hyperparams(
        self, params: Mapping[str, Any] | Namespace, metrics: Mapping[str, Any] | None = None, step: int = 0
    ) -> None:
        """Write hyperparameters for the dashboard; see `Logger.log_hyperparams`.

        Args:
            params: Names and values; nested ones get names such as `optimizer/lr`. Those of several calls before the
                first metric add up; the dashboard shows none that come later.
            metrics: Metrics that the dashboard compares runs by, with first values; by default `hp_metric`.
            step: The step of those values.
        """
        self._hparams.update(as_mapping(params))
        self._is_summary_due = True
        if metrics is not None:
            self._hp_metrics = (dict(metrics), step)
        if self.is_writing:
            self._write_yaml()

    def _write_summary(self) -> None:
        """Write all hyperparameters at once, before the first metric: of several summaries the dashboard takes one."""
        if not (self._is_summary_due and self.is_writing):
            return
        self._is_summary_due = False
        metrics, step = self._hp_metrics
        summary = import_extra("torch.utils.tensorboard.summary", extra="tensorboard", purpose="TensorBoardLogger")
        file_writer = self.experiment._get_file_writer()
        for part in summary.hparams(flatten(self._hparams), metrics):
            file_writer.add_summary(part)
        if not self._is_resumed:
            for name, value in metrics.items():
                self.experiment.add_scalar(name, as_float(name, value), step)

    def _write_yaml(self) -> None:
        assert self.log_dir is not None
        make_directory(Path(self.log_dir))
        write_text_atomically(Path(self.log_dir) / "hparams.yaml", to_yaml(self._hparams))

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Trace the model and write its graph, if the logger was made with `log_graph=True`.

        It is traced in eval mode, without gradients, and draws no random numbers from the run's.

        Args:
            model: The module.
            input_array: What its forward takes; by default its `example_input_array`.
        """
        if not (self._logs_graph and self.is_writing):
            return
        if input_array is None:
            input_array = getattr(model, "example_input_array", None)
        if input_array is None:
            warnings.warn(f"No graph was written: {type(model).__name__} has no example_input_array.", stacklevel=2)
            return
        device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        with forked_rng(0), torch.no_grad(), warnings.catch_warnings():
            # torch 2.13 writes graphs by torch.jit.trace alone, and calls it deprecated.
            warnings.filterwarnings("ignore", message=".*torch.jit.trace", category=DeprecationWarning)
            self.experiment.add_graph(model, move_to(input_array, device))

    def state_dict(self) -> dict[str, Any]:
        """The directory of the run, and what was written of the last step."""
        return {**self._directory.state_dict(), "last": {"step": self._last_step, "values": dict(self._values)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the directory of the run that was saved, if no version was given."""
        if self._writer is not None or self._last_step >= 0:
            return
        self._saved = state.get("last")
        if self._directory.adopt(state, is_writing=self.is_writing) and self.is_writing:
            self.open(is_global_zero=True)


def _tensorboard() -> Any:
    return import_extra("torch.utils.tensorboard", extra="tensorboard", purpose="TensorBoardLogger")
