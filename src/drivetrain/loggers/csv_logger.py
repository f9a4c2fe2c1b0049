"""Metrics as rows of a CSV file."""

from __future__ import annotations

import csv
import io
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.base.errors import LoggingError
from drivetrain.base.files import write_text_atomically
from drivetrain.base.temporary_names import temporary_sibling
from drivetrain.loggers.hyper_parameters import as_mapping, to_yaml
from drivetrain.loggers.logger import Logger
from drivetrain.loggers.number import as_float
from drivetrain.loggers.run_directory import RunDirectory

_log = logging.getLogger("drivetrain.loggers")


class CSVLogger(Logger):
    """Appends a row to `<save_dir>/<name>/version_<n>/metrics.csv` for each call; hyperparameters go to `hparams.yaml`.

    A row costs the same however long the file is. A name that was not there before costs one rewrite of the file, under
    another name until it is complete.

    Args:
        save_dir: The directory of all experiments.
        name: The experiment.
        version: A number or a name; by default the next free number, chosen by rank 0 when the run starts.
        prefix: Put before the name of each metric.
        flush_logs_every_n_steps: Rows wait in memory for so many optimizer steps at most; `save` writes them at once.
    """

    def __init__(
        self,
        save_dir: str | Path,
        name: str | None = "drivetrain_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        self._name = name or ""
        self._directory = RunDirectory(save_dir, self._name, version)
        self._prefix = f"{prefix}-" if prefix else ""
        self._flush_every = flush_logs_every_n_steps
        self._hparams: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._columns = ["step"]
        self._num_written_columns = 0  # of the file's header; 0 without a file
        self._last_step = -1
        self._flushed_step = -1
        self._resume_step: int | None = None
        self._repeated = {f"{self._prefix}epoch"}  # stands in every row
        self._present: set[str] = set()  # what the file holds of the step from which the run goes on

    # ---------------------------------------------------------------- life

    def open(self, *, is_global_zero: bool, resume_step: int | None = None) -> None:
        """Choose and make the directory, and read what it holds; see `Logger.open`.

        Ranks: any.
        """
        super().open(is_global_zero=is_global_zero, resume_step=resume_step)
        if not is_global_zero:
            return
        self.save()
        self._directory.make()
        self._read_back(resume_step)
        if self._hparams:
            self._write_hparams()

    def save(self) -> None:
        """Append the rows that wait in memory.

        Raises:
            LoggingError: The file cannot be written; it is left without half a row.
        """
        if not self._rows:
            return
        path = self.metrics_path
        try:
            if self._num_written_columns < len(self._columns) and path.exists():
                self._rewrite(path)
            text = io.StringIO()
            writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
            if not path.exists():
                writer.writeheader()
            writer.writerows(self._rows)
            _append(path, text.getvalue().encode("utf-8"))
        except OSError as error:
            raise LoggingError(
                f"{path} cannot be written: {error.strerror}.",
                code="log-write",
                do="Make room or the directory writable, or log elsewhere.",
            ) from error
        self._num_written_columns = len(self._columns)
        self._rows = []
        self._flushed_step = self._last_step

    def finalize(self, status: str) -> None:
        """Write what waits. After a failure an error of the disk is said and does not hide the failure."""
        self._present = set()
        try:
            self.save()
        except LoggingError as error:
            if status == "success":
                raise
            _log.warning("%s", error)

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
        return self._directory.path

    @property
    def earlier_log_dirs(self) -> list[str]:
        """See `Logger.earlier_log_dirs`."""
        return self._directory.earlier()

    @property
    def metrics_path(self) -> Path:
        """The file of the metrics."""
        assert self.log_dir is not None, f"{self.root_dir} has no version yet"
        return Path(self.log_dir) / "metrics.csv"

    @property
    def experiment(self) -> CSVLogger:
        """This logger itself."""
        return self

    # ---------------------------------------------------------------- write

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add a row; see `Logger.log_metrics`.

        Raises:
            LoggingError: A value is not a number.
        """
        if not self.is_writing:
            return
        step = self._last_step + 1 if step is None else int(step)
        row = {self._prefix + name: _number(name, value) for name, value in metrics.items()}
        if self._present and step == self._resume_step:
            row = {name: value for name, value in row.items() if name not in self._present or name in self._repeated}
            if row.keys() <= self._repeated:
                return
        self._columns += [name for name in row if name not in self._columns]
        self._rows.append({**row, "step": step})
        self._last_step = step
        if step - self._flushed_step >= self._flush_every or len(self._rows) >= self._flush_every:
            self.save()

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace) -> None:
        """Write `hparams.yaml`; see `Logger.log_hyperparams`."""
        self._hparams.update(as_mapping(params))
        if self.is_writing:
            self._write_hparams()

    def state_dict(self) -> dict[str, Any]:
        """The directory of the run."""
        return self._directory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the directory of the run that was saved, if no version was given."""
        if self._rows or self._flushed_step >= 0:
            return
        if self._directory.adopt(state, is_writing=self.is_writing) and self.is_writing:
            self.open(is_global_zero=True)

    def _write_hparams(self) -> None:
        assert self.log_dir is not None
        write_text_atomically(Path(self.log_dir) / "hparams.yaml", to_yaml(self._hparams))

    # ---------------------------------------------------------------- the file

    def _read_back(self, resume_step: int | None) -> None:
        """Learn what an existing file holds, and drop what must not stay."""
        self._resume_step, self._present, self._num_written_columns = resume_step, set(), 0
        path = self.metrics_path
        if not path.exists() or path.stat().st_size == 0:
            path.unlink(missing_ok=True)
            return
        columns = _read_columns(path)
        self._columns = [*columns, *(name for name in self._columns if name not in columns)]
        self._num_written_columns = len(columns)
        last, num_dropped = -1, 0
        for row in _read_rows(path, columns):
            step = int(row["step"])
            if resume_step is not None and step > resume_step:
                num_dropped += 1
                continue
            last = max(last, step)
            if step == resume_step:
                self._present |= {name for name, value in row.items() if value != "" and name != "step"}
        self._last_step = self._flushed_step = last
        if num_dropped or not _is_whole(path):
            self._rewrite(path, last_step=resume_step)
            self._num_written_columns = len(self._columns)
        if num_dropped:
            _log.warning("%s: dropped %d rows after step %d, where the run goes on.", path, num_dropped, resume_step)

    def _rewrite(self, path: Path, *, last_step: int | None = None) -> None:
        """Write the file again with all columns, without half a row at its end and without steps after `last_step`."""
        old = _read_columns(path)
        temporary = temporary_sibling(path)
        try:
            with open(temporary, "x", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, self._columns, restval="", lineterminator="\n")
                writer.writeheader()
                rows = _read_rows(path, old)
                writer.writerows(row for row in rows if last_step is None or int(row["step"]) <= last_step)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _append(path: Path, data: bytes) -> None:
    """All of the bytes, or none."""
    with open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except BaseException:
            file.truncate(size)
            raise


def _read_columns(path: Path) -> list[str]:
    with open(path, encoding="utf-8", newline="") as file:
        columns = next(csv.reader(file), [])
    if "step" not in columns:
        raise LoggingError(
            f"{path} has no column named step: it was not written by a CSVLogger.",
            code="log-file",
            do="Move it away, or give the logger another version.",
        )
    return columns


def _read_rows(path: Path, columns: list[str]) -> Iterator[dict[str, str]]:
    """The whole rows of a file; half a row at its end, left by a kill, is left out."""
    with open(path, encoding="utf-8", newline="") as file:
        lines = (line for line in file if line.endswith("\n"))
        next(lines, None)
        for values in csv.reader(lines):
            if len(values) == len(columns):
                yield dict(zip(columns, values, strict=True))


def _is_whole(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    return as_float(name, value)
