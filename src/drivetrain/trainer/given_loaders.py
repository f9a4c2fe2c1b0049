"""Loaders in the shapes in which a run may be given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from drivetrain.data.combined_loader import CombinedBatches, CombinedLoader, leaves_of


def trained_on(given: Any) -> Any:
    """The one loader of training: several in a dict or list are read side by side, the shorter ones again."""
    if isinstance(given, Mapping) or (isinstance(given, (list, tuple)) and any(_has_loader(one) for one in given)):
        return CombinedLoader(given, "max_size_cycle")
    return given


def evaluated(given: Any) -> Sequence[Any]:
    """The loaders of an evaluation, one after another."""
    if given is None:
        return []
    if isinstance(given, CombinedLoader) and given.mode == "sequential":
        return given.flattened
    if isinstance(given, Mapping):
        return list(given.values())
    return given if isinstance(given, (list, tuple)) else [given]


def as_given(loader: Any) -> Any:
    """What the user knows of a loader of a run."""
    return loader.source.combined if isinstance(loader.source, CombinedBatches) else loader.source


def _has_loader(value: Any) -> bool:
    return any(isinstance(one, DataLoader) for one in leaves_of(value))
