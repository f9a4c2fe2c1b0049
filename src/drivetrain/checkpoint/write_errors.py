"""How a checkpoint that cannot be written is reported."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import free_space_bytes

_ADVICE = {
    errno.ENOSPC: "Free some space, or write to another disk; the next save then works.",
    errno.EDQUOT: "The quota of this user is used up. Free some space, or write to another disk.",
    errno.EACCES: "Write to a directory that this user may write to.",
    errno.EPERM: "Write to a directory that this user may write to.",
    errno.EROFS: "The file system is read-only. Write to another directory.",
    errno.ENAMETOOLONG: "Use a shorter name: a suffix of about 50 characters is added while it is being written.",
    errno.ENOENT: "Something removed the directory meanwhile, e.g. the start of another run on the same directory.",
    errno.EEXIST: "Each file of a checkpoint is written once, under a name of its own.",
}

# What a busy disk or a network that hangs for a moment says.
_PASSING = {
    errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET,
    errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EREMOTEIO,
}  # fmt: skip


def may_pass(error: BaseException) -> bool:
    """Writing may succeed when it is tried again."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` inside into a `CheckpointError` with code `checkpoint-write` that names `path`."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> CheckpointError:
    """The error to raise because writing `path` failed with `error`."""
    advice = _ADVICE.get(error.errno or 0, "Look at the disk, or write to another one.")
    space = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with contextlib.suppress(OSError):
            space = f" ({free_space_bytes(path)} bytes free there)"
    return CheckpointError(
        f"{path} could not be written: {error.strerror or error}{space}.",
        code="checkpoint-write",
        do=f"{advice}\nThe checkpoint was not made; earlier ones are intact.",
    )


def require_space(directory: Path, *, size_bytes: int) -> None:
    """Fail before anything is written if a checkpoint of that size cannot fit.

    Raises:
        CheckpointError: `checkpoint-write`.
    """
    with writing(directory):
        free_bytes = free_space_bytes(directory)
    if free_bytes < size_bytes:
        raise CheckpointError(
            f"{directory} has {free_bytes} bytes free; the checkpoint needs {size_bytes}.",
            code="checkpoint-write",
            do=f"{_ADVICE[errno.ENOSPC]}\nThe checkpoint was not made; earlier ones are intact.",
        )
