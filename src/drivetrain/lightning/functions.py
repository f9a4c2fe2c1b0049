"""Small functions that scripts take from `utilities`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.base.optional import import_extra
from drivetrain.base.rng import capture_rng, restore_rng
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.loggers.logger import SilentExperiment


def apply_to_collection(data: Any, dtype: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A nested structure with a function applied to all that is of a type, or of one of several.

    Args:
        data: Mappings, lists and tuples are gone into.
        dtype: The type, or a tuple of types.
        function: Called with each, and with the further arguments.
        args: For the function.
        kwargs: Likewise.
    """
    if isinstance(data, dtype):
        return function(data, *args, **kwargs)

    def again(value: Any) -> Any:
        return apply_to_collection(value, dtype, function, *args, **kwargs)

    if isinstance(data, Mapping):
        return {key: again(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(again, data))
    return type(data)(map(again, data)) if isinstance(data, (list, tuple)) else data


def get_filesystem(path: str | Path, **options: Any) -> Any:
    """The fsspec file system that a path or URL is on."""
    fsspec = import_extra("fsspec.core", extra="s3", purpose="get_filesystem")
    return fsspec.url_to_fs(str(path), **options)[0]


def grad_norm(module: nn.Module, norm_type: float | str, group_separator: str = "/") -> dict[str, torch.Tensor]:
    """The norm of each parameter's gradient, and of all together, by the names under which they are logged."""
    order = float(norm_type)
    norms = {
        f"grad_{norm_type}_norm{group_separator}{name}": parameter.grad.detach().norm(order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        total = torch.stack(list(norms.values())).norm(order)
        norms[f"grad_{norm_type}_norm_total"] = total
    return norms


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """The random state after the block is that before it.

    Args:
        include_cuda: Accepted for familiarity: the devices' state is always put back.
    """
    found = capture_rng()
    try:
        yield
    finally:
        restore_rng(found)


def is_overridden(method_name: str, instance: Any, parent: type) -> bool:
    """An object's class has another method of a name than its parent."""
    return getattr(type(instance), method_name, None) is not getattr(parent, method_name, None)


def rank_zero_experiment(function: Callable[..., Any]) -> Callable[..., Any]:
    """For `experiment` of a logger of one's own: on other ranks it is an object that takes every call."""

    @functools.wraps(function)
    def on_rank_zero(self: Any) -> Any:
        return function(self) if current_cluster().rank == 0 else SilentExperiment()

    return on_rank_zero
