"""Where a checkpoint goes, and the steps in which it comes to be there: whole or not at all."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from drivetrain.base.errors import CheckpointError
from drivetrain.base.files import Write, write_plainly
from drivetrain.checkpoint.commit import commit, discard, point_latest, temporary_directory
from drivetrain.checkpoint.manifest import FileRecord, Manifest, write_manifest
from drivetrain.checkpoint.stale import remove_stale_temporaries

_log = logging.getLogger("drivetrain.checkpoint")


class Destination(ABC):
    """One checkpoint that is being made.

    token = begin()                                # rank 0
    with opened(token) as directory:               # every rank
        records = ...                              # files written there
        send(token, directory, records)
    finish(token, manifest)                        # rank 0; if anything fails before: abandon(token)
    """

    @abstractmethod
    def begin(self) -> str:
        """Make room for it, under a name that nobody else uses.

        Raises:
            CheckpointError: It cannot be made, or would replace something that is no checkpoint.
        """

    @abstractmethod
    def opened(self, token: str) -> AbstractContextManager[Path]:
        """A directory in which this rank writes its files."""

    @abstractmethod
    def send(self, token: str, directory: Path, records: Sequence[FileRecord]) -> None:
        """Bring what this rank wrote to where the checkpoint will be.

        Raises:
            CheckpointError: `checkpoint-write`.
        """

    @abstractmethod
    def finish(self, token: str, manifest: Manifest, *, write: Write = write_plainly) -> None:
        """From here on it is there, in the place of one that was there before; then let `latest` name it.

        Raises:
            CheckpointError: `checkpoint-write`.
        """

    @abstractmethod
    def abandon(self, token: str) -> None:
        """Remove what was written; what was there before stays."""


class LocalDestination(Destination):
    """A directory of a file system that all ranks see.

    Args:
        final: The checkpoint.
    """

    def __init__(self, final: Path) -> None:
        self._final = final

    def begin(self) -> str:
        """Make the hidden directory, after what dead writers left is gone."""
        remove_stale_temporaries(self._final.parent)
        return str(temporary_directory(self._final))

    def opened(self, token: str) -> AbstractContextManager[Path]:
        """The hidden directory itself."""
        return nullcontext(Path(token))

    def send(self, token: str, directory: Path, records: Sequence[FileRecord]) -> None:
        """It is there."""

    def finish(self, token: str, manifest: Manifest, *, write: Write = write_plainly) -> None:
        """Write the manifest and rename. A pointer that cannot be moved is said: the checkpoint is there."""
        write_manifest(Path(token), manifest, write=write)
        commit(Path(token), self._final)
        try:
            point_latest(self._final.parent, self._final.name, write=write)
        except CheckpointError as error:
            if error.code != "checkpoint-write":
                raise
            _log.warning("%s is saved, but `latest` does not lead to it: %s", self._final, error.what)

    def abandon(self, token: str) -> None:
        """Delete the hidden directory."""
        discard(Path(token))
