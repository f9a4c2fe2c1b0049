"""Every error that drivetrain raises on purpose.

    DrivetrainError
    ├── ConfigError            (ValueError)      an argument, or two that do not fit together
    ├── MissingExtraError      (ImportError)     an optional package is not installed
    ├── MissingNameError       (ImportError)     a familiar name that drivetrain does not have
    ├── DeviceError            (RuntimeError)    a device that is not there
    ├── LaunchError            (RuntimeError)    ranks that cannot be started, or are started twice
    │   └── RankFailedError                      a rank that was started has failed; holds its traceback
    ├── ProcessGroupError      (RuntimeError)    a process group that does not fit the run
    ├── NotOpenError           (RuntimeError)    something that exists only inside a running rank
    ├── ModelError             (ValueError)      a module that cannot be trained as it is
    │   └── MethodNotPreparedError               a method that would run beside the wrapper
    ├── OptimizerError         (ValueError)      an optimizer or scheduler that does not fit the model
    ├── StepOutputError        (TypeError)       a step that returned something else than a loss
    ├── DataError              (ValueError)      a loader that cannot be sharded, or is empty
    │   └── UnevenDataError                      ranks that hold different numbers of batches
    ├── HookError              (TypeError)       a hook that does not exist
    ├── WindowError            (RuntimeError)    a window that was left half done
    ├── OutOfMemoryError       (RuntimeError)    the smallest micro-batch does not fit
    ├── NonFiniteError         (ArithmeticError) a loss or gradient that is inf or nan
    ├── LoggingError           (ValueError)      a value or a name that cannot be logged
    └── CheckpointError        (RuntimeError)    a checkpoint that cannot be written, read or trusted

Each carries a code that has an entry in `docs/errors.md`. A bug of our own is an `assert`.
"""

from __future__ import annotations

from typing import Any


class DrivetrainError(Exception):
    """The root: what is, what would be right, what to do.

    Args:
        what: What is, with the names and values that the user wrote.
        code: A short stable name of the case, e.g. `"batch-split"`; its entry is in `docs/errors.md`.
        do: What would be right, and what to do.
        rank: `(rank, world_size)` where the error is one rank's; shown as `[rank 2/8]`.
    """

    __module__ = "drivetrain"

    def __init__(self, what: str, *, code: str, do: str = "", rank: tuple[int, int] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.do = do
        self.rank = rank

    def __str__(self) -> str:
        where = f"[rank {self.rank[0]}/{self.rank[1]}] " if self.rank is not None and self.rank[1] > 1 else ""
        text = f"[{self.code}] {where}{self.what}"
        return text + "".join(f"\n    {line}" for line in self.do.splitlines())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(cls: type[DrivetrainError], state: dict[str, Any]) -> DrivetrainError:
    error = cls.__new__(cls)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error


class ConfigError(DrivetrainError, ValueError):
    """An argument that is wrong by itself, or two that do not fit together."""

    __module__ = "drivetrain"


class MissingExtraError(DrivetrainError, ImportError):
    """An optional package that a feature needs is not installed."""

    __module__ = "drivetrain"


class MissingNameError(DrivetrainError, ImportError):
    """A familiar name that drivetrain does not have; it says what to use instead."""

    __module__ = "drivetrain"


class DeviceError(DrivetrainError, RuntimeError):
    """A device that was asked for is not there."""

    __module__ = "drivetrain"


class LaunchError(DrivetrainError, RuntimeError):
    """Ranks cannot be started here, or were started already."""

    __module__ = "drivetrain"


class RankFailedError(LaunchError):
    """A rank that drivetrain started has failed.

    Attributes:
        failed_rank: The rank that failed first.
        traceback_text: Its traceback as text; empty when it died without one (a signal, `os._exit`).
        exit_code: Its exit code; negative for a signal.
    """

    __module__ = "drivetrain"

    def __init__(
        self, what: str, *, failed_rank: int, exit_code: int, traceback_text: str = "", code: str = "rank-failed"
    ) -> None:
        super().__init__(what, code=code, do=traceback_text)
        self.failed_rank = failed_rank
        self.exit_code = exit_code
        self.traceback_text = traceback_text


class ProcessGroupError(DrivetrainError, RuntimeError):
    """A process group that does not fit the run."""

    __module__ = "drivetrain"


class NotOpenError(DrivetrainError, RuntimeError):
    """Something was asked for that exists only inside a running rank."""

    __module__ = "drivetrain"


class ModelError(DrivetrainError, ValueError):
    """A module that cannot be trained as it is."""

    __module__ = "drivetrain"


class MethodNotPreparedError(ModelError):
    """A method was called that would run beside the wrapper, without gradient sync."""

    __module__ = "drivetrain"


class OptimizerError(DrivetrainError, ValueError):
    """An optimizer or scheduler that does not fit the model."""

    __module__ = "drivetrain"


class StepOutputError(DrivetrainError, TypeError):
    """A step returned something else than a loss."""

    __module__ = "drivetrain"


class DataError(DrivetrainError, ValueError):
    """A loader that cannot be sharded, or holds nothing."""

    __module__ = "drivetrain"


class UnevenDataError(DataError):
    """Ranks hold different numbers of batches."""

    __module__ = "drivetrain"


class HookError(DrivetrainError, TypeError):
    """A hook that does not exist."""

    __module__ = "drivetrain"


class WindowError(DrivetrainError, RuntimeError):
    """A window was left before its optimizer step."""

    __module__ = "drivetrain"


class OutOfMemoryError(DrivetrainError, RuntimeError):
    """The smallest micro-batch does not fit into memory."""

    __module__ = "drivetrain"


class NonFiniteError(DrivetrainError, ArithmeticError):
    """A loss or a gradient is inf or nan."""

    __module__ = "drivetrain"


class LoggingError(DrivetrainError, ValueError):
    """A value or a name that cannot be logged."""

    __module__ = "drivetrain"


class CheckpointError(DrivetrainError, RuntimeError):
    """A checkpoint that cannot be written, read or trusted."""

    __module__ = "drivetrain"
