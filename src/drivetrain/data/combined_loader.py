"""Several loaders read as one: side by side, or one after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from drivetrain.base.errors import DataError
from drivetrain.data.order import length_of

MODES = ("min_size", "max_size_cycle", "max_size", "sequential")
_END: Any = object()


class CombinedLoader:
    """Loaders in a dict, list or tuple, nested as you like; a batch has the same structure, with a batch of each.

    To a run it is a loader: each of its loaders is sharded, ordered and seeded like one that is passed alone, and
    shuffled in an order of its own. Samples are counted in the first loader's batch.

    Iterated over outside of a run it gives `(batch, batch_idx, dataloader_idx)`.

    Args:
        iterables: The loaders.
        mode: `"min_size"` ends with the shortest loader; `"max_size_cycle"` with the longest, while shorter ones begin
            anew; `"max_size"` with the longest, with `None` for those that have ended; `"sequential"` reads them one
            after another: a batch is then one of one loader.

    Raises:
        DataError: There is no loader, or no such mode.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in MODES:
            raise DataError(
                f"mode={mode!r} is not known.", code="combined-loaders", do=f"Use one of {', '.join(MODES)}."
            )
        self.iterables = iterables
        self.mode = mode
        self.flattened = list(leaves_of(iterables))
        if not self.flattened:
            raise DataError("A CombinedLoader got no loader.", code="combined-loaders", do="Give it one or several.")

    @property
    def batch_size(self) -> int | None:
        """Of the first loader; `None` if it does not say."""
        size: int | None = getattr(self.flattened[0], "batch_size", None)
        return size

    def __len__(self) -> int:
        length = combined_length(self.mode, [length_of(one) for one in self.flattened])
        if length is None:
            raise TypeError("a CombinedLoader of loaders without a length has none")
        return length

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        counts = [itertools.count() for _ in self.flattened]
        for batch, index in self.batches_of(self.flattened):
            yield batch, next(counts[index]), index

    def batches_of(self, parts: Sequence[Any]) -> Iterator[tuple[Any, int]]:
        """One epoch, and of which loader each batch is; 0 where it is of all.

        Args:
            parts: What is read in the places of the loaders.
        """
        if self.mode == "sequential":
            yield from ((batch, index) for index, part in enumerate(parts) for batch in part)
            return
        for row in _ROWS[self.mode](*parts):
            yield _with_leaves(self.iterables, iter(row)), 0


class CombinedBatches:
    """The epochs of a `CombinedLoader` in a run.

    Args:
        combined: The user's.
        parts: What is read in the places of its loaders: those of this rank, in their order.
    """

    def __init__(self, combined: CombinedLoader, parts: Sequence[Any]) -> None:
        self.combined = combined
        self.parts = parts
        self.batch_size = combined.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter`."""
        for part in self.parts:
            part.set_epoch(epoch)

    def __len__(self) -> int:
        length = combined_length(self.combined.mode, [part.num_batches for part in self.parts])
        if length is None:
            raise TypeError("it has loaders without a length")
        return length

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _ in self.combined.batches_of(self.parts))


def combined_length(mode: str, lengths: Sequence[int | None]) -> int | None:
    """Batches of an epoch; `None` if a loader has no length."""
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return {"min_size": min, "sequential": sum}.get(mode, max)(known)  # type: ignore[operator,no-any-return]


def _shortest(*parts: Any) -> Iterator[Sequence[Any]]:
    return zip(*parts, strict=False)


def _cycled(*parts: Any) -> Iterator[Sequence[Any]]:
    """Rows until each part has ended once."""
    iterators = [iter(part) for part in parts]
    ended = [False] * len(parts)
    while True:
        row = []
        for index, part in enumerate(parts):
            batch = next(iterators[index], _END)
            if batch is _END:
                ended[index] = True
                if all(ended):
                    return
                iterators[index] = iter(part)
                batch = next(iterators[index], _END)
            if batch is _END:
                raise DataError("A loader holds no batch.", code="no-batches", do="Give it at least one.")
            row.append(batch)
        yield row


def leaves_of(tree: Any) -> Iterator[Any]:
    """What is in a nested structure of mappings, lists and tuples, in order."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if not isinstance(tree, (list, tuple)):
        yield tree
        return
    for one in tree:
        yield from leaves_of(one)


def _with_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """The same structure, with values in the places of the leaves."""
    if isinstance(tree, Mapping):
        return {key: _with_leaves(value, values) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with_leaves(one, values) for one in tree])
    return next(values)


_ROWS: dict[str, Callable[..., Iterator[Any]]] = {
    "min_size": _shortest, "max_size": itertools.zip_longest, "max_size_cycle": _cycled,
}  # fmt: skip
