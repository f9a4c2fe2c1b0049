"""May this process still change what others read? A process that came back too late must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drivetrain.base.errors import CheckpointError

SUPERSEDED = "checkpoint-superseded"


class Fence:
    """Asked before a checkpoint gets its name.

    Open, unless a launcher has ended the round that this process is of, or another process has taken over the folder.
    """

    def __init__(self) -> None:
        self._is_open: Callable[[], bool] | None = None
        self._successors: dict[str, Callable[[], str | None]] = {}

    def follow(self, is_open: Callable[[], bool] | None) -> None:
        """Let a function decide from now on; `None`: it is open."""
        self._is_open = is_open

    @contextmanager
    def watching(self, folder: str, successor: Callable[[], str | None]) -> Iterator[None]:
        """Ask, for a block, before each change in a folder: who has taken it over from this process? `None`: nobody."""
        before = self._successors.get(folder)
        self._successors[folder] = successor
        try:
            yield
        finally:
            del self._successors[folder]
            if before is not None:
                self._successors[folder] = before

    def require_open(self, path: Path | str) -> None:
        """Refuse to change `path` in a process whose time is over.

        Raises:
            CheckpointError: `checkpoint-fenced`, `checkpoint-superseded`.
        """
        if self._is_open is not None and not self._is_open():
            raise CheckpointError(
                f"{path} is not written: this process is of a round of ranks that its launcher has ended.",
                code="checkpoint-fenced",
                do="Nothing: it was stopped or cut off, and the run has ended or goes on without it.",
            )
        for folder, successor in list(self._successors.items()):
            other = successor() if str(path).startswith(f"{folder.rstrip('/')}/") else None
            if other is not None:
                raise CheckpointError(
                    f"{path} is not written: {other} has gone on from a checkpoint of this run in {folder}.",
                    code="checkpoint-superseded",
                    do="If that one is to go on, end this one. For two runs from the same checkpoint, give each a "
                    "folder (dirpath) of its own.",
                )


FENCE = Fence()  # of this process, as it is of one round
