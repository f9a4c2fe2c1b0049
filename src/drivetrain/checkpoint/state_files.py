"""What a rank writes of a state: at once, or from a copy in memory, later and beside other work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.base.files import Write, write_plainly
from drivetrain.checkpoint.manifest import FileRecord
from drivetrain.checkpoint.staging import Staging
from drivetrain.checkpoint.write import write_tensors


@dataclass(frozen=True)
class Place:
    """Where and how files are written.

    Attributes:
        directory: Private to this save; other ranks may write there, too.
        collectives: How the ranks that write talk to each other: not those of training, where they write beside it.
        write: Writes bytes to the open file.
    """

    directory: Path
    collectives: Any = None
    write: Write = write_plainly


WriteValue = Callable[[Place, Any], list[FileRecord]]


class StateFiles(ABC):
    """Takes this rank's share of a state, file by file."""

    def add(self, name: str, value: Any) -> None:
        """One file of tensors and plain data.

        Raises:
            CheckpointError: It cannot be written, or not be loaded again.
        """
        self.add_with(lambda place, one: [write_tensors(place.directory / name, one, write=place.write)], value)

    @abstractmethod
    def add_with(self, write: WriteValue, value: Any) -> None:
        """Files that a function writes.

        Ranks: all, if the function communicates.

        Args:
            write: Called with a place and the value or a copy of it.
            value: Tensors and plain data.

        Raises:
            CheckpointError: It cannot be written, or not be loaded again.
        """


class WrittenFiles(StateFiles):
    """Files that are written when they are given.

    Attributes:
        records: What was written, hashed as it was meant to be.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.records: list[FileRecord] = []

    def add_with(self, write: WriteValue, value: Any) -> None:
        """Write at once.

        Ranks: all, if the function communicates.
        """
        self.records += write(self._place, value)


class StagedFiles(StateFiles):
    """Files whose content is copied when it is given, and written later.

    Args:
        staging: Holds the copies until it begins anew.
    """

    def __init__(self, staging: Staging) -> None:
        staging.begin()
        self._staging = staging
        self._files: list[tuple[WriteValue, Any]] = []

    def add_with(self, write: WriteValue, value: Any) -> None:
        """Copy; nothing is written yet.

        Ranks: any.
        """
        self._files.append((write, self._staging.copy(value)))

    def finish(self) -> None:
        """All was given: wait until the copies are complete."""
        self._staging.finish()

    def write_to(self, files: StateFiles) -> None:
        """Write what was copied.

        Ranks: all, if one of the functions communicates.
        """
        for write, value in self._files:
            files.add_with(write, value)
