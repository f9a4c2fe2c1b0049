"""Disks without room: one that is mounted for a trial, and a rank whose writes say that its own is full."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from pathlib import Path
from typing import BinaryIO

from drivetrain.checkpoint.commit import LATEST_NAME
from drivetrain.checkpoint.manifest import MANIFEST_NAME

PAGE_BYTES = 4096
_CLONE_NEWNS = 0x00020000


class SmallDisk:
    """A tmpfs that only this process and its children see; it is gone with them.

    Args:
        path: Where.
        size_bytes: Of all of it.

    Raises:
        OSError: It may not be mounted.
    """

    def __init__(self, path: Path, size_bytes: int = 1 << 22) -> None:
        path.mkdir(parents=True)
        self.path = path
        self._filler = path / "filler"
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]):
            done = subprocess.run(["mount", *words], capture_output=True, text=True)
            if done.returncode:
                raise OSError(errno.EPERM, done.stderr)

    def fill(self, room_bytes: int) -> None:
        """Leave room for so much."""
        stat = os.statvfs(self.path)
        with open(self._filler, "wb") as file:
            file.write(bytes(max(0, stat.f_bavail * stat.f_frsize - room_bytes)))

    def free(self) -> None:
        """All that was filled."""
        self._filler.unlink(missing_ok=True)


class FullWrite:
    """A `Write` for a disk that has no more room.

    Args:
        place: `"data"`, `"manifest"` or `"latest"`: what there is no room for; half of the first piece fits.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if place_of(Path(file.name)) != self.place:
            file.write(data)
            return
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def place_of(path: Path) -> str:
    """Which part of a save a file is; it may still have a temporary name."""
    if MANIFEST_NAME in path.name:
        return "manifest"
    return "latest" if path.name.lstrip(".").startswith(LATEST_NAME) else "data"


def room_for(checkpoint: Path, place: str) -> int:
    """Bytes that let a save like this one come to a place, and no further: half of it, where that is its data."""
    sizes = [-(-path.stat().st_size // PAGE_BYTES) for path in checkpoint.rglob("*") if place_of(path) == "data"]
    return {"data": sum(sizes) // 2, "manifest": sum(sizes), "latest": sum(sizes) + 1, "log": 0}[place] * PAGE_BYTES
