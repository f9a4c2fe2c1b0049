"""State of strategies in which every rank holds all of it: rank 0 writes one file, every rank reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.manifest import FileRecord
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.write import write_tensors
from drivetrain.strategies.prepared import Prepared

STATE_FILE = "state.pt"


def replica_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Modules, optimizers and stateful objects as their state dicts; plain data as it is."""
    return {name: _state_of(value) for name, value in state.items()}


def write_replica(state: Mapping[str, Any], directory: Path) -> list[FileRecord]:
    """Write the whole state as one file, synced to disk.

    Raises:
        CheckpointError: It cannot be written.
    """
    return [write_tensors(directory / STATE_FILE, replica_state(state))]


def read_replica(state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
    """Put one file's state back; returns plain data, and what the file holds beyond `state`.

    Raises:
        CheckpointError: A name is missing, or a module does not fit and `strict` is set.
    """
    saved: dict[str, Any] = read_tensors(directory / STATE_FILE)
    missing = [name for name in state if name not in saved]
    if missing and strict:
        raise CheckpointError(
            f"{directory} holds {', '.join(sorted(saved))}, but not {', '.join(missing)}.",
            code="checkpoint-keys",
            do="Load what was saved, or pass strict=False.",
        )
    return put_back(state, saved, strict=strict)


def put_back(state: Mapping[str, Any], saved: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Load saved values into what `state` names; returns those that nothing can be loaded into.

    Raises:
        CheckpointError: A module does not fit and `strict` is set.
    """
    rest: dict[str, Any] = {}
    for name, value in saved.items():
        target: Any = state.get(name)
        target = target.original if isinstance(target, Prepared) else target
        if isinstance(target, nn.Module):
            load_module(target, value, strict=strict, name=name)
        elif hasattr(target, "load_state_dict"):
            target.load_state_dict(value)
        else:
            rest[name] = value
    return rest


def load_module(module: nn.Module, saved: dict[str, Any], *, strict: bool, name: str) -> None:
    """Load a module's state, and report what is missing *and* what is unexpected.

    Raises:
        CheckpointError: They differ and `strict` is set, or a shape differs.
    """
    try:
        result = module.load_state_dict(saved, strict=False)
    except RuntimeError as cause:
        raise CheckpointError(
            f"The saved {name!r} does not fit {type(module).__name__}: {cause}",
            code="checkpoint-keys",
            do="Build the module with the sizes that it was saved with.",
        ) from cause
    if strict and (result.missing_keys or result.unexpected_keys):
        raise CheckpointError(
            f"The saved {name!r} does not fit {type(module).__name__}: missing {result.missing_keys or 'nothing'}, "
            f"unexpected {result.unexpected_keys or 'nothing'}.",
            code="checkpoint-keys",
            do="Build the module as it was saved, or pass strict=False to load what fits.",
        )


def _state_of(value: Any) -> Any:
    if isinstance(value, Prepared):
        return value.original.state_dict()
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return value
