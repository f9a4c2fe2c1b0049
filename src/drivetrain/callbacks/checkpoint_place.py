"""Where the checkpoints of a run are, and names there that are free."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from drivetrain.base.locations import is_url, join, locate
from drivetrain.checkpoint.remote import exists

FOLDER_NAME = "checkpoints"


def default_dirpath(trainer: Any) -> str:
    """`checkpoints` in the logger's directory, or below the trainer's root."""
    return _place_of(trainer, trainer.log_dir)


def earlier_dirpaths(trainer: Any) -> list[str]:
    """Where the default was in the versions that the logger chose before: a run that is started again has a new one."""
    logger = next(iter(trainer.loggers), None)
    return [_place_of(trainer, one) for one in logger.earlier_log_dirs] if logger is not None else []


def _place_of(trainer: Any, log_dir: str | None) -> str:
    root = locate(trainer.default_root_dir)
    if not is_url(root):
        return join(locate(log_dir or root), FOLDER_NAME)
    # Logs are on this machine; below the URL a run has the same names as there.
    logger = next(iter(trainer.loggers), None)
    names = Path(log_dir).relative_to(logger.save_dir).parts if logger is not None and log_dir else ()
    return join(root, *names, FOLDER_NAME)


def free_path(directory: str, name: str, suffix: str, *, replaceable: Container[str | None]) -> str:
    """A path in a directory that nothing has yet, or that may be replaced: with `-v1`, `-v2` after the name if needed.

    Ranks: 0.
    """
    path = join(directory, f"{name}{suffix}")
    number = 0
    while path not in replaceable and exists(path):
        number += 1
        path = join(directory, f"{name}-v{number}{suffix}")
    return path
