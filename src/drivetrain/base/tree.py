"""Nested structures of tensors: batches, outputs, states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply `function` to every tensor of a nested structure and keep all the rest as it is.

    Goes into mappings, lists, tuples, named tuples and dataclasses. Containers are rebuilt as their own type; what
    cannot be rebuilt from its values comes back unchanged.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        items = {key: map_tensors(function, value) for key, value in tree.items()}
        return items if type(tree) is dict else _rebuild_mapping(tree, items)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if type(tree) in (list, tuple):
        return type(tree)(map_tensors(function, value) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            field.name: map_tensors(function, getattr(tree, field.name))
            for field in dataclasses.fields(tree)
            if field.init
        }
        return dataclasses.replace(tree, **changed)
    return tree


def _rebuild_mapping(tree: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    import copy

    same = copy.copy(tree)
    try:
        for key, value in items.items():
            same[key] = value  # type: ignore[index]
    except TypeError:
        return tree
    return same


def tensors_of(tree: Any) -> list[Tensor]:
    """Every tensor of a nested structure, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, tree)
    return found


def move_to(tree: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Bring every tensor, and everything else with a `to(device)` method, to `device`.

    Args:
        tree: A batch of any structure.
        device: Where to.
        non_blocking: Let copies from pinned memory run beside the host.
    """
    if isinstance(tree, (Tensor, Mapping, list, tuple)) or not hasattr(tree, "to"):
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), tree)
    moved = tree.to(device)
    return tree if moved is None else moved


def batch_size_of(tree: Any) -> int:
    """Samples in a batch: dim 0 of its first tensor with a dim, else the length of its first list, else 1."""
    if isinstance(tree, Tensor):
        return int(tree.shape[0]) if tree.ndim else 1
    size = _first_size(tree)
    return 1 if size is None else size


def _first_size(tree: Any) -> int | None:
    if isinstance(tree, Tensor):
        return int(tree.shape[0]) if tree.ndim else None
    values: Any = None
    if isinstance(tree, Mapping):
        values = tree.values()
    elif isinstance(tree, (list, tuple)):
        values = tree
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        values = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    if values is None:
        return None
    for value in values:
        size = _first_size(value)
        if size is not None:
            return size
    return len(tree) if isinstance(tree, list) else None


def slice_batch(tree: Any, first: int, last: int, size: int) -> Any:
    """Samples `first` to `last` (exclusive) of a batch of `size`: of tensors along dim 0, of lists of plain values."""
    if isinstance(tree, list) and len(tree) == size and not any(isinstance(one, _PARTS) for one in tree):
        return tree[first:last]
    if isinstance(tree, Tensor):
        return tree[first:last] if tree.ndim and tree.shape[0] == size else tree
    if isinstance(tree, Mapping):
        items = {key: slice_batch(value, first, last, size) for key, value in tree.items()}
        return items if type(tree) is dict else _rebuild_mapping(tree, items)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(slice_batch(value, first, last, size) for value in tree))
    if type(tree) in (list, tuple):
        return type(tree)(slice_batch(value, first, last, size) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree) if field.init]
        return dataclasses.replace(
            tree, **{name: slice_batch(getattr(tree, name), first, last, size) for name in fields}
        )
    return tree


_PARTS = (Tensor, Mapping, list, tuple)
