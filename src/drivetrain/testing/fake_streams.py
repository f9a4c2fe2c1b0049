"""Streams of no device: what would be queued in them is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class FakeStreams:
    """Stands for `drivetrain.device.streams.CudaStreams` in tests on a CPU.

    Attributes:
        log: What happened, in order: `"copy 0"`, `"wait 0"`, `"keep"`; users of it may append what they do.
        is_beside: A block of copies is open.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_beside = False
        self._num_copies = 0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Written down as `"copy <number>"`."""
        self.log.append(f"copy {self._num_copies}")
        self._num_copies += 1
        self.is_beside = True
        try:
            yield
        finally:
            self.is_beside = False

    def mark(self) -> Any:
        """The number of the last copy."""
        return self._num_copies - 1

    def wait(self, mark: Any) -> None:
        """Written down as `"wait <number>"`."""
        self.log.append(f"wait {mark}")

    def keep(self, tensor: Tensor) -> None:
        """Written down as `"keep"`."""
        self.log.append("keep")
