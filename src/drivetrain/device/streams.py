"""A stream of copies beside the stream in which a device computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """What copies beside the computation need of a device; without one: `drivetrain.testing.fake_streams`."""

    def beside(self) -> AbstractContextManager[None]:
        """A block whose work is queued in the stream of copies, and whose tensors are taken from that one's memory."""

    def mark(self) -> Any:
        """A mark behind what is queued in the stream of copies."""

    def wait(self, mark: Any) -> None:
        """Let what is queued from now on for the computation run after a mark; the host does not wait."""

    def keep(self, tensor: Tensor) -> None:
        """Let memory from the stream of copies be given away only after the computation that is queued until then."""


class CudaStreams:
    """Streams of a CUDA device.

    A copy reads pinned memory, which torch's allocator keeps until the copy is through. It writes to memory that
    belongs to the stream of copies: freed, it would be written to by a later copy at once, while kernels that were
    queued in the other stream may still read it. `keep` tells the allocator of those (`Tensor.record_stream`).

    Args:
        device: With an index, or the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """See `Streams.beside`."""
        with torch.cuda.stream(self._side):
            yield

    def mark(self) -> Any:
        """See `Streams.mark`."""
        return self._side.record_event()

    def wait(self, mark: Any) -> None:
        """See `Streams.wait`."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    def keep(self, tensor: Tensor) -> None:
        """See `Streams.keep`."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))
