"""The directory of one run among those of an experiment: `save_dir/name/version_3`."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

_VERSION = re.compile(r"version_(\d+)")


class RunDirectory:
    """Chooses the next free number, once and on the disk, so that two runs that start together get two directories.

    Args:
        save_dir: The directory of all experiments.
        name: The experiment; empty for no directory of its own.
        version: A number, a name, or `None` for the next free number.
    """

    def __init__(self, save_dir: str | Path, name: str, version: int | str | None) -> None:
        self.save_dir = str(save_dir)
        self.root = os.path.join(self.save_dir, name) if name else self.save_dir
        self.version = version
        self.is_given = version is not None

    @property
    def path(self) -> str | None:
        """The directory; `None` until the version is known."""
        if self.version is None:
            return None
        return os.path.join(self.root, f"version_{self.version}" if isinstance(self.version, int) else self.version)

    def earlier(self) -> list[str]:
        """The numbered directories of other runs; none if the user gave a version."""
        if self.is_given or not os.path.isdir(self.root):
            return []
        return sorted(
            os.path.join(self.root, name)
            for name in os.listdir(self.root)
            if (match := _VERSION.fullmatch(name)) and int(match[1]) != self.version
        )

    def make(self) -> None:
        """Make the directory, with the next free number if no version is known yet.

        Ranks: 0.
        """
        if self.path is not None:
            os.makedirs(self.path, exist_ok=True)
            return
        os.makedirs(self.root, exist_ok=True)
        numbers = [int(match[1]) for name in os.listdir(self.root) if (match := _VERSION.fullmatch(name))]
        number = max(numbers, default=-1) + 1
        while not _is_made(os.path.join(self.root, f"version_{number}")):
            number += 1
        self.version = number

    def state_dict(self) -> dict[str, Any]:
        """Plain data with which `adopt` finds the directory again."""
        return {"root_dir": os.path.abspath(self.root), "version": self.version}

    def adopt(self, state: dict[str, Any], *, is_writing: bool) -> bool:
        """Go on in the directory of an earlier run. A version that the user gave stays, and so does another root.

        Ranks: any.

        Args:
            state: What `state_dict` gave.
            is_writing: Remove the directory that `make` made for this run; it is empty.

        Returns:
            Whether the directory is another one now.
        """
        version = state.get("version")
        if self.is_given or version in (None, self.version) or state.get("root_dir") != os.path.abspath(self.root):
            return False
        if is_writing and self.path is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
        self.version = version
        return True


def _is_made(path: str) -> bool:
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True
