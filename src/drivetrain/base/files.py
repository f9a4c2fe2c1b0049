"""Files that survive a crash: written beside their final name, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from drivetrain.base.temporary_names import temporary_sibling

Write = Callable[[BinaryIO, bytes | memoryview], object]
"""Writes all of the bytes to the open file. A test hands in one that fails, waits or dies at a chosen byte."""


def write_plainly(file: BinaryIO, data: bytes | memoryview) -> None:
    """The `Write` of everyday: the file's own."""
    file.write(data)


def write_bytes_atomically(path: Path, data: bytes, *, write: Write = write_plainly) -> None:
    """Make `path` hold `data`; whoever reads it, also after a power cut, sees the whole old or the whole new content.

    The bytes go to a hidden file in the same directory first: a full or separate temporary disk does not matter.

    Raises:
        OSError: The old content is untouched, and the hidden file has been removed.
    """
    temporary = temporary_sibling(path)
    try:
        with open(temporary, "xb") as file:
            write(file, data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def write_text_atomically(path: Path, text: str, *, write: Write = write_plainly) -> None:
    """`write_bytes_atomically` for text, as UTF-8."""
    write_bytes_atomically(path, text.encode("utf-8"), write=write)


def fsync_directory(directory: Path) -> None:
    """Bring the names in a directory (what was made, renamed or removed there) to the disk.

    File systems that cannot do that for a directory are left to their own care.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Bring the content of a file that is written and closed to the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, and bring each new name to the disk; one that is there is fine."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    fsync_directory(directory.parent)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content in hex, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_space_bytes(path: Path) -> int:
    """Bytes that this user may still write on the disk of `path`, which need not exist yet."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free
