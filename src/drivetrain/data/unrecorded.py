"""Batches of a `DataLoader` without torch's bookkeeping around each of them while nobody looks at it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import dataloader as _torch

from drivetrain.base.recorded import is_recorded

# Where a torch of the future has another name, its iterators are left alone.
_Iterator: Any = getattr(_torch, "_BaseDataLoaderIter", None)


def unrecorded(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, where `batches` is an iterator of torch's own.

    Torch (2.13) opens a profiler's record around each `next`, also while no profiler runs: longer than it takes to make
    a small batch. Loaders of streams are left alone: torch counts their batches there, and warns.
    """
    own: Any = batches
    is_known = _Iterator is not None and type(own).__next__ is _Iterator.__next__ and hasattr(own, "_next_data")
    if not is_known or own._dataset_kind == _torch._DatasetKind.Iterable or own._sampler_iter is None:
        return batches
    next_batch = own._next_data

    def read(_: None) -> Any:
        if is_recorded():
            return next(batches)
        own._num_yielded += 1
        return next_batch()

    return map(read, itertools.repeat(None))
