"""May this process still change what others read? A process that came back too late must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drivetrain.base.errors import CheckpointError


class Fence:
    """Asked before a checkpoint gets its name. Open, unless a launcher has ended the round that this process is of."""

    def __init__(self) -> None:
        self._is_open: Callable[[], bool] | None = None

    def follow(self, is_open: Callable[[], bool] | None) -> None:
        """Let a function decide from now on; `None`: it is open."""
        self._is_open = is_open

    def require_open(self, path: Path | str) -> None:
        """Refuse to change `path` in a process whose round is over.

        Raises:
            CheckpointError: `checkpoint-fenced`.
        """
        if self._is_open is not None and not self._is_open():
            raise CheckpointError(
                f"{path} is not written: this process is of a round of ranks that its launcher has ended.",
                code="checkpoint-fenced",
                do="Nothing: it was stopped or cut off, and the run has ended or goes on without it.",
            )


FENCE = Fence()  # of this process, as it is of one round
