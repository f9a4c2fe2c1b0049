"""Copies of a state in memory of the host, so that training goes on while they are written."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from drivetrain.checkpoint.plain_data import require_plain


class Staging:
    """Buffers into which states are copied, one state after the other.

    A copy holds until the next `begin`: buffers are used again, those of a size that is not asked for any more go.
    Beside a GPU they are pinned and filled without waiting; `finish` waits once for all.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[int, bool], list[Tensor]] = defaultdict(list)
        self._used: defaultdict[tuple[int, bool], list[Tensor]] = defaultdict(list)
        self._devices: set[torch.device] = set()

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        kept = [*self._free.values(), *self._used.values()]
        return sum(buffer.nbytes for buffers in kept for buffer in buffers)

    def begin(self) -> None:
        """The copies made before are not needed any more."""
        self._free, self._used = self._used, defaultdict(list)

    def copy(self, value: Any) -> Any:
        """A copy of tensors and plain data that is pickled to the same bytes, but for the device of its tensors.

        What shares memory, or is one object, in the state is so in the copy.

        Raises:
            CheckpointError: `checkpoint-plain-data`: it could not be loaded again.
        """
        require_plain(value)
        storages: dict[int, Tensor] = {}
        staged = {id(tensor): self._copy_tensor(tensor, storages) for tensor in _tensors_in(value)}
        return copy.deepcopy(value, staged)

    def finish(self) -> None:
        """Wait until all copies are complete."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()
        self._free.clear()

    def _copy_tensor(self, tensor: Tensor, storages: dict[int, Tensor]) -> Tensor:
        own = tensor.detach()
        if own.layout is not torch.strided or own.is_conj() or own.is_neg() or own.is_quantized:
            staged = own.to("cpu", copy=True)
        else:
            storage = own.untyped_storage()
            key = storage._cdata
            if key not in storages:
                storages[key] = self._copy_storage(storage)
            staged = torch.empty(0, dtype=own.dtype).set_(
                storages[key].untyped_storage(), own.storage_offset(), own.size(), own.stride()
            )
        if type(tensor) is Parameter:
            staged = Parameter(staged, requires_grad=tensor.requires_grad)
        else:
            staged.requires_grad_(tensor.requires_grad)
        for name, attribute in tensor.__dict__.items():
            setattr(staged, name, copy.deepcopy(attribute))
        return staged

    def _copy_storage(self, storage: torch.UntypedStorage) -> Tensor:
        is_pinned = storage.device.type == "cuda"
        key = (storage.nbytes(), is_pinned)
        free = self._free[key]
        buffer = free.pop() if free else torch.empty(key[0], dtype=torch.uint8, pin_memory=is_pinned)
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        buffer.copy_(source, non_blocking=is_pinned)
        if is_pinned:
            self._devices.add(storage.device)
        self._used[key].append(buffer)
        return buffer


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of plain data, wherever `copy.deepcopy` would meet one."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _tensors_in(part)
    if not isinstance(value, Tensor):
        for part in getattr(value, "__dict__", {}).values():
            yield from _tensors_in(part)
