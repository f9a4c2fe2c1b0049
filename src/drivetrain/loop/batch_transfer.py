"""How a batch comes to the device, where a module or data module says so itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from drivetrain.base.tree import move_to
from drivetrain.data.loader import Loader
from drivetrain.loop.overrides import overridden

Move = Callable[[Any], Any]


class BatchTransfer:
    """Override what is needed; of a data module and a module that both do, the data module's is used."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch as it is to be moved; it is what the loader gave, on the CPU. By default the same."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch: by default everything in it that has a `to`, in lists, dicts and dataclasses too."""
        return move_to(batch, device, non_blocking=True)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch as steps and hooks get it, for example augmented on the device. By default the same."""
        return batch


def bind_transfer(owners: list[Any], loader: Loader, device: torch.device, convert: Move, index: int) -> None:
    """Let a loader bring its batches to the device as a module or data module says.

    Where one of them moves batches itself, or sees them before, each is moved as it is handed out: what they do may
    depend on the steps made until then. What comes after the move does not keep the loader from copying ahead.

    Args:
        owners: The first that overrides a method is asked.
        loader: Knows what does it if nobody overrides anything.
        device: Where batches go.
        convert: Brings floating tensors to the parameters' dtype.
        index: Of the loader.
    """

    def first(name: str, num_arguments: int) -> Callable[..., Any] | None:
        found = [overridden(owner, BatchTransfer, name, num_arguments) for owner in owners]
        return next((method for method in found if method is not None), None)

    before, own_move = first("on_before_batch_transfer", 2), first("transfer_batch_to_device", 3)
    after, move = first("on_after_batch_transfer", 2), loader.move
    if before is None and own_move is None and after is None:
        return
    if before is None and own_move is None and loader.copies is not None and after is not None:
        loader.after = functools.partial(_at, after, index)
        return

    def transfer(batch: Any) -> Any:
        if before is not None:
            batch = before(batch, index)
        if own_move is not None:
            batch = convert(own_move(batch, device, index))
        elif move is not None:
            batch = move(batch)
        return batch if after is None else after(batch, index)

    loader.move, loader.copies = transfer, None


def _at(hook: Callable[..., Any], index: int, batch: Any) -> Any:
    return hook(batch, index)
