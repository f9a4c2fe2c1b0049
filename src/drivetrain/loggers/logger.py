"""The contract of a logger: where metrics and hyperparameters are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger(ABC):
    """Writes on rank 0 of an open run; everywhere else each write is a no-op that does not touch the disk.

    A logger of one's own defines `name`, `log_metrics` and `log_hyperparams`, and asks `is_writing` before it writes.
    It is handed what it needs and knows no trainer.
    """

    _is_writing: bool = False
    _version: int | str | None = None

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Say which rank this is; from here on rank 0 writes. May be called again, with the step of a resumed run.

        Ranks: any.

        Args:
            is_global_zero: This is rank 0.
            resume_step: The optimizer step from which a run goes on: what was written after it is written again, so
                the older values are dropped.
        """
        self._is_writing = is_global_zero

    @property
    def is_writing(self) -> bool:
        """The logger was opened, on rank 0."""
        return self._is_writing

    def save(self) -> None:
        """Bring everything that was logged to the disk."""

    def finalize(self, status: str) -> None:
        """A run has ended; another may follow with the same logger.

        Args:
            status: `"success"`, `"failed"` or `"interrupted"`.
        """
        self.save()

    # ---------------------------------------------------------------- where

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the experiment."""

    @property
    def version(self) -> int | str | None:
        """Which run of the experiment this is; `None` until rank 0 has chosen it, and elsewhere until it is set."""
        return self._version

    @version.setter
    def version(self, version: int | str | None) -> None:
        self._version = version

    @property
    def save_dir(self) -> str | None:
        """The directory of all experiments; `None` if this logger has none."""
        return None

    @property
    def root_dir(self) -> str | None:
        """The directory of this experiment."""
        return self.save_dir

    @property
    def log_dir(self) -> str | None:
        """The directory of this run; `None` as long as `version` is."""
        return self.save_dir

    @property
    def earlier_log_dirs(self) -> list[str]:
        """Of other runs of this experiment, one of which this run may go on; none where a version was given."""
        return []

    @property
    def experiment(self) -> Any:
        """The object that does the writing, for what this class does not offer; elsewhere one that takes every call."""
        return None

    # ---------------------------------------------------------------- write

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write values.

        Args:
            metrics: Names and numbers.
            step: Optimizer steps done; by default one more than last time.
        """

    @abstractmethod
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write hyperparameters; those of several calls add up. Before the run is open they are kept for it."""

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the graph of a model, if this logger can."""

    def after_save_checkpoint(self, callback: Any) -> None:
        """A checkpoint is complete.

        Args:
            callback: The `ModelCheckpoint` that asked for it.
        """

    def has_registry(self, model_name: str) -> bool:
        """Models can be registered where this logger writes to; asked when a trainer is made.

        Args:
            model_name: Of the model.

        Raises:
            ConfigError: They can, but not under this name.
        """
        return False

    def register_model(self, model_name: str, checkpoint: str, *, directory: Path, digest: str) -> None:
        """Make a checkpoint a version of a model, unless it is one; after `finalize`.

        Args:
            model_name: Of the model, which is made if it does not exist.
            checkpoint: Its path or URL.
            directory: Where its files are now.
            digest: Tells it from all others.
        """

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Plain data with which a resumed run finds its directory again."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Before anything is logged."""


class SilentExperiment:
    """Stands for `Logger.experiment` where nothing is written: every attribute, call and item is itself."""

    def __getattr__(self, name: str) -> SilentExperiment:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> SilentExperiment:
        return self

    def __getitem__(self, key: Any) -> SilentExperiment:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        return None
