"""A name that always leads to the newest checkpoint: a link, or a file that names it where there are no links."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from drivetrain.base.files import fsync_directory, write_text_atomically
from drivetrain.base.temporary_names import temporary_sibling


def point_last(pointer: Path, target: Path) -> None:
    """Make `pointer` lead to `target`; whoever follows it finds the old one or the new one.

    Ranks: 0.

    Raises:
        OSError: `pointer` is a directory, or its directory cannot be written.
    """
    relative = os.path.relpath(target, pointer.parent)
    temporary = temporary_sibling(pointer)
    try:
        os.symlink(relative, temporary, target_is_directory=True)
    except OSError:  # a file system without links
        write_text_atomically(pointer, f"{relative}\n")
        return
    try:
        os.replace(temporary, pointer)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(pointer.parent)


def resolve_last(pointer: Path) -> Path | None:
    """The checkpoint that `pointer` leads to; `None` if it leads nowhere."""
    if pointer.is_dir():
        return pointer.resolve()
    try:
        relative = pointer.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None
    target = pointer.parent / relative
    return target.resolve() if relative and target.is_dir() else None
