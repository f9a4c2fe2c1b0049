"""What loggers of services share: a run with an id, steps that are made again, checkpoints as artifacts."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loggers.logger import Logger
from drivetrain.loggers.repeated_steps import RepeatedSteps


class ServiceLogger(Logger):
    """Writes to a run of a service; files beside it are in `<save_dir>/<name>/<id>`.

    A logger of a service defines `root_dir` and `_keep_checkpoints` beside what each logger does.

    Args:
        run_id: Of a run that was given by the user; `None` for a new one.
        log_model: Keep checkpoints as artifacts: `"all"` at once, `True` the best and last one when training has ended.
        prefix: Put before the name of each metric.

    Raises:
        ConfigError: `log_model` is something else.
    """

    def __init__(self, run_id: str | None, *, log_model: str | bool, prefix: str) -> None:
        if log_model not in (True, False, "all"):
            raise ConfigError(
                f"log_model={log_model!r} is not known.", code="log-model", do="Use True, False or 'all'."
            )
        self._version = run_id
        self._is_given = run_id is not None
        self._log_model = log_model
        self._prefix = f"{prefix}-" if prefix else ""
        self._hparams: dict[str, Any] = {}
        self._repeated = RepeatedSteps()
        self._last_step = -1
        self._keeper: Any = None  # the ModelCheckpoint whose checkpoints are kept at the end

    @property
    @abstractmethod
    def root_dir(self) -> str:
        """The directory of all runs of the name."""

    @property
    def log_dir(self) -> str | None:
        """The directory of the run: of its checkpoints; `None` until it has an id."""
        return None if self._version is None else os.path.join(self.root_dir, str(self._version))

    @property
    def earlier_log_dirs(self) -> list[str]:
        """See `Logger.earlier_log_dirs`."""
        if self._is_given or not os.path.isdir(self.root_dir):
            return []
        names = sorted(name for name in os.listdir(self.root_dir) if name != self._version)
        return [path for name in names if os.path.isdir(path := os.path.join(self.root_dir, name))]

    def after_save_checkpoint(self, callback: Any) -> None:
        """Keep the checkpoint as an artifact, if that was asked for."""
        if self._log_model == "all":
            self._keep_checkpoints(callback)
        elif self._log_model:
            self._keeper = callback

    def state_dict(self) -> dict[str, Any]:
        """The id of the run."""
        return {"root_dir": os.path.abspath(self.root_dir), "version": self._version}

    @abstractmethod
    def _keep_checkpoints(self, keeper: Any) -> None:
        """Keep those of a ModelCheckpoint as artifacts."""

    def _end_stage(self) -> None:
        """Keep the checkpoints that were waited for; what comes now is no repetition."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and self.is_writing:
            self._keep_checkpoints(keeper)
        self._repeated.end()

    def _next_step(self, step: int | None) -> int:
        """The step of a row, which is noted as the last one."""
        self._last_step = self._last_step + 1 if step is None else int(step)
        return self._last_step

    def _step_of(self, step: int | None) -> int:
        return max(self._last_step, 0) if step is None else step
