"""Checkpoints as directories of this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from drivetrain.base.locations import is_url
from drivetrain.checkpoint.remote import downloaded
from drivetrain.fabric.together import together
from drivetrain.strategies.strategy import Strategy


class Downloads(AbstractContextManager["Downloads"]):
    """Brings checkpoints of stores here for the time of a block, each once for each machine; others are here already.

    Ranks: all, for the block and in it.

    Args:
        strategy: Of the run.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.collectives = strategy.collectives
        self._cluster = strategy.cluster
        self._stack = ExitStack()
        self._directories: dict[str, Path] = {}

    def directory_of(self, location: str) -> Path:
        """Where the files of a checkpoint are.

        Ranks: all (a download is waited for; then it is known).

        Raises:
            CheckpointError: On every rank, if it cannot be downloaded on any machine.
        """
        if not is_url(location):
            return Path(location)
        if location not in self._directories:
            found = self.collectives.gather_objects(together(self.collectives, lambda: self._download(location)))
            self._directories[location] = Path(dict(filter(None, found))[self._cluster.node_rank])
        return self._directories[location]

    def share_of(self, location: str) -> tuple[int, int]:
        """Which part of its files this rank verifies, of how many: a download is verified on each machine."""
        if is_url(location):
            return self._cluster.local_rank, self._cluster.local_world_size
        return self.collectives.rank, self.collectives.world_size

    def _download(self, location: str) -> tuple[int, str] | None:
        if self._cluster.local_rank != 0:
            return None
        return self._cluster.node_rank, str(self._stack.enter_context(downloaded(location)))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._directories:
            self.collectives.barrier()  # others may still be reading
        self._stack.close()
