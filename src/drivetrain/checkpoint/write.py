"""The files of a checkpoint: written, flushed to the disk and hashed on the way."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch

from drivetrain.base.checksum import Checksum, checksum_file
from drivetrain.base.files import Write, fsync_file, hash_file, write_plainly
from drivetrain.base.pulse import PULSE
from drivetrain.base.tree import tensors_of
from drivetrain.checkpoint.manifest import FileRecord
from drivetrain.checkpoint.plain_data import require_plain
from drivetrain.checkpoint.write_errors import write_error, writing


class _HashingStream:
    """What `torch.save` writes to: hashes what it is given, before the disk can lose or change it."""

    def __init__(self, file: BinaryIO, write: Write) -> None:
        self._file = file
        self._write = write
        self.sha256 = hashlib.sha256()
        self.checksum = Checksum()
        self.size_bytes = 0
        self.failure: BaseException | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            self._write(self._file, data)
        except BaseException as error:
            # The zip writer of torch (2.13) replaces an error from in here by one about a position.
            self.failure = error
            raise
        self.sha256.update(data)
        self.checksum.update(data)
        self.size_bytes += len(data)
        PULSE.count += 1
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def write_tensors(
    path: Path, value: Any, *, root: Path | None = None, read_back: bool = False, write: Write = write_plainly
) -> FileRecord:
    """Write tensors and plain data to a new file and bring it to the disk.

    The state must not change meanwhile: hand in a copy to go on training beside it.

    Args:
        path: A file that does not exist yet, in a directory that does.
        value: Any nesting of dicts, lists, tuples and sets of tensors and plain values.
        root: The checkpoint that the record's name starts from; the directory of the file if `None`.
        read_back: Read the file again and compare hashes, for storage that is not to be trusted.
        write: Writes bytes to the open file.

    Raises:
        CheckpointError: `checkpoint-plain-data` if it could not be loaded again, before anything is written;
            `checkpoint-write` if the file cannot be written. It has been removed then.
    """
    require_plain(value)
    name = path.relative_to(root).as_posix() if root is not None else path.name
    with writing(path):
        file = open(path, "xb")  # noqa: SIM115 (closed below, where a failure to close counts)
    stream = _HashingStream(file, write)
    try:
        with file:
            torch.save(value, stream)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        record = FileRecord(name, stream.size_bytes, stream.sha256.hexdigest(), stream.checksum.hexdigest())
        _check_on_disk(path, record, read_back=read_back)
    except BaseException as error:
        with contextlib.suppress(OSError):
            path.unlink()
        cause = stream.failure or error
        if isinstance(cause, OSError):
            raise write_error(path, cause) from cause
        if cause is error:
            raise
        raise cause from None
    return record


def record_file(root: Path, name: str) -> FileRecord:
    """Bring a file that someone else wrote into the checkpoint at `root` to the disk, and hash it as it is there.

    Raises:
        CheckpointError: `checkpoint-write`.
    """
    path = root / name
    with writing(path):
        fsync_file(path)
        return FileRecord(name, path.stat().st_size, hash_file(path), checksum_file(path))


def size_bytes_of(value: Any) -> int:
    """Bytes that the tensors in a state take in a file, each storage counted once; the rest is small."""
    storages = {}
    for tensor in tensors_of(value):
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr() or id(tensor)] = storage.nbytes()
        else:
            storages[id(tensor)] = tensor._nnz() * tensor.element_size()
    return sum(storages.values())


def _check_on_disk(path: Path, record: FileRecord, *, read_back: bool) -> None:
    size_bytes = path.stat().st_size
    if size_bytes != record.size_bytes:
        raise OSError(errno.EIO, f"the file system kept {size_bytes} of {record.size_bytes} bytes without an error")
    if read_back and hash_file(path) != record.sha256:
        raise OSError(errno.EIO, "what was read back is not what was written")
