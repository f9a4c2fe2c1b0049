"""The contract of a profiler: it is told when an action begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drivetrain.base.files import make_directory


class Profiler:
    """Override `start`, `stop` and `summary`. Actions are nested: the one that began last ends first.

    A trainer tells its profiler of every window: `loop` around all of it, and in it `data`, `transfer`, `forward`,
    `backward`, `sync`, `optimizer` and `callbacks/<hook>`; and of `loader start`, `loggers`, `validation` and
    `checkpoint`.

    Args:
        dirpath: Where files go; by default to the directory of the first logger.
        filename: The file of the summary, without its ending; without a name it is printed.
    """

    def __init__(self, dirpath: str | Path | None = None, filename: str | None = None) -> None:
        self.dirpath = None if dirpath is None else Path(dirpath)
        self.filename = filename
        self._rank, self._num_ranks = 0, 1
        self._directory = Path(".")

    def begin(self, directory: str | Path, *, rank: int, num_ranks: int) -> None:
        """A run begins.

        Args:
            directory: Where files go that were given no place.
            rank: This one; each rank has files of its own.
            num_ranks: Of how many.
        """
        self._directory = self.dirpath or Path(directory)
        self._rank, self._num_ranks = rank, num_ranks

    def start(self, action_name: str) -> None:
        """An action begins."""

    def stop(self, action_name: str) -> None:
        """An action ends."""

    def step(self) -> None:
        """A window is over."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[None]:
        """An action, as a block."""
        self.start(action_name)
        try:
            yield
        finally:
            self.stop(action_name)

    def end(self) -> None:
        """The run is over."""

    def summary(self) -> str:
        """What was found, as text."""
        return ""

    def describe(self) -> None:
        """Print the summary on rank 0, or write it to the file of this rank."""
        text = self.summary()
        if not text:
            return
        if self.filename is not None:
            path = self.path(".txt")
            path.write_text(text + "\n", encoding="utf-8")
        elif self._rank == 0:
            print(text)

    def path(self, ending: str, *, default: str = "profile") -> Path:
        """The file of this rank, in a directory that is there."""
        make_directory(self._directory.absolute())
        of_rank = f"-rank_{self._rank}" if self._num_ranks > 1 else ""
        return self._directory / f"{self.filename or default}{of_rank}{ending}"


class PassThroughProfiler(Profiler):
    """Does nothing: what `trainer.profiler` is without one."""
