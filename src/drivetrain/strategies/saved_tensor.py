"""Sharded tensors of a checkpoint that are read when somebody uses them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from drivetrain.base.tree import map_tensors

SHARDED_KEY = "drivetrain.sharded"  # in the place of a sharded tensor: a dict with this key and the tensor's name

_KNOWN_UNREAD = {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.element_size,
    Tensor.is_floating_point,
    Tensor.__len__,
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "layout", "nbytes", "requires_grad", "is_meta", "is_sparse")
    ),
}


class SavedTensor(Tensor):
    """A tensor whose size and type are known, and whose values are in a file.

    Any other use reads it, whole, on this rank alone, and keeps it.

    Args:
        name: Under which its shards are found.
        size: Of the whole tensor.
        dtype: Its type.
        read: Gives the whole tensor of a name.
    """

    name_in_file: str
    found: Tensor | None
    _read: Callable[[str], Tensor]

    @staticmethod
    def __new__(cls, name: str, size: torch.Size, dtype: torch.dtype, read: Callable[[str], Tensor]) -> SavedTensor:
        made: SavedTensor = Tensor._make_wrapper_subclass(cls, size, dtype=dtype)
        made.name_in_file, made.found, made._read = name, None, read
        return made

    def __init__(self, *args: Any) -> None:
        pass  # made by torch

    def whole(self) -> Tensor:
        """Its values."""
        if self.found is None:
            self.found = self._read(self.name_in_file)
        return self.found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _KNOWN_UNREAD:
                return func(*args, **(kwargs or {}))
            args, kwargs = map_tensors(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = map_tensors(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.whole() if isinstance(tensor, SavedTensor) else tensor


def unread(value: Any) -> Any:
    """A nested state as a file has it: tensors that were not read are names again; what holds none is left as it is."""
    if isinstance(value, SavedTensor):
        return {SHARDED_KEY: value.name_in_file} if value.found is None else value.found
    return map_parts(unread, value)


def map_parts(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the parts of a dict, list or tuple, which comes back as it is if none of them changed."""
    if isinstance(value, Mapping):
        parts = {key: function(one) for key, one in value.items()}
        return value if all(parts[key] is one for key, one in value.items()) else parts
    if type(value) in (list, tuple):
        items = [function(one) for one in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value
