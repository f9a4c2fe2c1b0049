"""Batches that are copied to a device beside what it computes, the next one already while this one is computed.

read batch 0, begin its copy
for each batch:
    read the next one, begin its copy         # if the loader may be read ahead
    let the computation wait for this one's copy
    hand it out
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.tree import tensors_of
from drivetrain.device.streams import Streams

_END: Any = object()


class Copies:
    """Begins the copies of batches, and hands the batches out.

    What is read ahead is not consumed: where an epoch is left, it is forgotten; an error in it is raised when its turn
    has come.

    Args:
        streams: Of the device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def of(self, batches: Iterator[Any], move: Callable[[Any], Any], *, is_ahead: bool) -> Iterator[Any]:
        """Batches on the device.

        Args:
            batches: As the loader gives them.
            move: Brings one to the device, without waiting for the copy of pinned memory.
            is_ahead: Read one more than was asked for.
        """
        held = self._begin(batches, move)
        while held is not _END:
            if isinstance(held, Exception):
                raise held
            following = self._begin(batches, move) if is_ahead else None
            yield self._finish(held, move)
            held = following if is_ahead else self._begin(batches, move)

    def _begin(self, batches: Iterator[Any], move: Callable[[Any], Any]) -> Any:
        try:
            batch = next(batches, _END)
            if batch is _END or not _can_copy_beside(batch):
                return batch if batch is _END else (batch, None)
            with self._streams.beside():
                batch = move(batch)
            return batch, self._streams.mark()
        except Exception as error:
            return error

    def _finish(self, held: tuple[Any, Any], move: Callable[[Any], Any]) -> Any:
        batch, mark = held
        if mark is None:
            return move(batch)
        self._streams.wait(mark)
        for tensor in tensors_of(batch):
            self._streams.keep(tensor)
        return batch


def _can_copy_beside(batch: Any) -> bool:
    """All that is copied can be seen, and nothing of it was made by the computation."""
    is_tree = isinstance(batch, (Tensor, Mapping, list, tuple)) or (
        dataclasses.is_dataclass(batch) and not hasattr(batch, "to")
    )
    tensors = tensors_of(batch) if is_tree else []
    return bool(tensors) and all(one.device.type == "cpu" and one.layout is torch.strided for one in tensors)
