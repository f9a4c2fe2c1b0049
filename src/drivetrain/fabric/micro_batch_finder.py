"""How many samples of a micro-batch fit into memory: found while training, by splitting what does not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from drivetrain.base.errors import ConfigError, DataError, OutOfMemoryError
from drivetrain.base.tree import batch_size_of, slice_batch, tensors_of

_MESSAGES = ("out of memory", "can't allocate memory", "failed to allocate")


class MicroBatchFinder:
    """Begins with the whole share of a rank, and halves it each time that any rank runs out of memory.

    Args:
        start: Samples of a micro-batch to begin with, on each rank; by default all of a rank's share.
        smallest: Fewer are not tried: running out of memory is an error then.
        probe: Called with the number of samples before each micro-batch; may raise an out-of-memory error. Stands in
            for a device's memory.

    Attributes:
        size: Samples of a micro-batch at most; `None` for all of a rank's share.
        num_splits: How often it was halved.
        error: This rank's, when memory ran out in the present attempt.
        samples: Of the present part.
        on_begin: Called when a window begins.
        on_retry: Called before all parts of a window run again.
    """

    def __init__(
        self, start: int | None = None, *, smallest: int = 1, probe: Callable[[int], None] | None = None
    ) -> None:
        if smallest < 1 or (start is not None and start < smallest):
            raise ConfigError(
                f"A micro-batch of start={start} to smallest={smallest} samples.",
                code="batch-size",
                do="Use smallest from 1, and start from smallest.",
            )
        self.size = start
        self.smallest = smallest
        self.num_splits = 0
        self.error: BaseException | None = None
        self.samples = 0
        self.on_begin: Callable[[], None] = _nothing
        self.on_retry: Callable[[], None] = _nothing
        self._probe = probe

    def parts(self, batch: Any) -> Iterator[tuple[Any, int]]:
        """The batch in parts that are expected to fit, each with its number of samples.

        Raises:
            DataError: It cannot be split.
        """
        total = batch_size_of(batch)
        size = total if self.size is None else min(self.size, total)
        if size == total:
            yield batch, total
            return
        if not any(tensor.ndim and tensor.shape[0] == total for tensor in tensors_of(batch)):
            raise DataError(
                f"A batch of {total} samples does not fit, and cannot be split: no tensor of it has a first dim of "
                f"{total}.",
                code="batch-unsplittable",
                do="Give batches whose tensors have the samples in dim 0, or micro_batch_size as a number.",
            )
        for first in range(0, total, size):
            last = min(first + size, total)
            yield slice_batch(batch, first, last, total), last - first

    def guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of the present part; `None` if memory ran out, which `error` then says."""
        try:
            if self._probe is not None:
                self._probe(self.samples)
            return function(*args)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.error = error.with_traceback(None)  # frames would keep their tensors
            return None

    def shrink(self, share: int, *, rank: tuple[int, int]) -> None:
        """Halve the size, on all ranks alike, and forget the error.

        Args:
            share: Samples of a rank's whole share, on the rank that has most.
            rank: This one, of how many.

        Raises:
            OutOfMemoryError: The smallest size does not fit.
        """
        error, self.error = self.error, None
        size = share if self.size is None else min(self.size, share)
        if size <= self.smallest:
            raise OutOfMemoryError(
                f"A micro-batch of {size} sample{'s' if size > 1 else ''} does not fit into the memory of "
                f"{'this rank' if error is not None else 'another rank'}.",
                code="out-of-memory",
                do="Use activation checkpointing, a smaller model or number format, or a strategy that shards.",
                rank=rank,
            ) from error
        self.size = max(self.smallest, -(-size // 2))
        self.num_splits += 1
        gc.collect()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """The error says that memory ran out: torch's own class, or what allocators of other devices say."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)


def _nothing() -> None:
    """By default nobody listens."""
