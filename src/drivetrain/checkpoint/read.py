"""Reading tensors back, without running anything that a file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drivetrain.base.errors import CheckpointError


def read_tensors(path: Path, *, map_location: str | torch.device = "cpu", mmap: bool = True) -> Any:
    """What `write_tensors` wrote.

    It does not verify the file; `require_valid` does.

    Args:
        path: The file.
        map_location: The device that all tensors are brought to.
        mmap: Let CPU tensors read the file when they are used, instead of copying it into memory first. Changes to such
            tensors stay in memory. The file may be deleted meanwhile on a local disk, but not on NFS by another host.

    Raises:
        CheckpointError: `checkpoint-missing`, or `checkpoint-corrupt` for a file that is damaged or holds more than
            tensors and plain data.
    """
    try:
        return _load(path, map_location, mmap)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CheckpointError(
            f"There is no file {path}.", code="checkpoint-missing", do="Give the path of a complete checkpoint."
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        if str(map_location) != "cpu" and _is_readable(path):
            raise  # the file is good; the device is not there or is full
        raise CheckpointError(
            f"{path} cannot be read: it is damaged, or holds more than tensors and plain data ({_first_line(error)}).",
            code="checkpoint-corrupt",
            do="No code from it was run. Resume from an earlier checkpoint.\n"
            "If another program wrote it, save it again from there as tensors and plain data only.",
        ) from error


def _load(path: Path, map_location: str | torch.device, mmap: bool) -> Any:
    return torch.load(str(path), map_location=map_location, weights_only=True, mmap=mmap)


def _is_readable(path: Path) -> bool:
    try:
        _load(path, "cpu", True)
    except Exception:
        return False
    return True


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
