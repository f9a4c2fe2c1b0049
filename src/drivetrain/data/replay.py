"""Going on inside an epoch of a source that only its owner can position: by its own state, or by reading it again."""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from drivetrain.base.rng import capture_rng, restore_rng

_log = logging.getLogger("drivetrain.data")
_END: Any = object()
_SAY_AFTER_S = 10.0


def stateful_part(loader: Any) -> Any:
    """What knows its own position: the loader, or its iterable data set where no worker has a copy; else `None`.

    It has `state_dict` and `load_state_dict`: plain data, from which the next `iter` goes on.
    """
    parts = [loader]
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset) and loader.num_workers == 0:
        parts.append(loader.dataset)
    for part in parts:
        if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
            return part
    return None


def has_lasting_workers(loader: Any) -> bool:
    """Its workers stay over epochs: only the first `iter` starts them, and draws their seed."""
    return bool(getattr(loader, "persistent_workers", False)) and getattr(loader, "num_workers", 0) > 0


def begin_anew(loader: Any) -> Iterator[Any]:
    """An epoch of a source whose state was loaded: if it says that it is at the end of one, the next one is begun."""
    state = capture_rng()
    batches = iter(loader)
    first = next(batches, _END)
    if first is not _END:
        return itertools.chain([first], batches)
    restore_rng(state)  # what the empty one has drawn
    return iter(loader)


def read_past(batches: Iterator[Any], num_batches: int, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Read what was trained on already, where a loader can only be read from its beginning."""
    warnings.warn(
        f"The loader cannot begin in the middle of an epoch: its first {num_batches} batches are read and dropped. "
        "A DataLoader over a map-style data set begins at once, and so does a loader, or an iterable data set without "
        "workers, that has state_dict and load_state_dict.",
        stacklevel=6,
    )
    start_s = said_s = clock()
    for number in range(1, num_batches + 1):
        if next(batches, _END) is _END:
            return
        now = clock()
        if now - said_s >= _SAY_AFTER_S:
            said_s = now
            left_s = (now - start_s) / number * (num_batches - number)
            _log.warning(
                "Read %d of %d batches to where the run goes on; about %.0f s left.", number, num_batches, left_s
            )
