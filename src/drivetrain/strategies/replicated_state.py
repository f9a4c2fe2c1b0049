"""State of strategies in which every rank holds all of it: rank 0 writes one file, every rank reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import CheckpointError
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.strategies.edited_state import edits_of, was_read
from drivetrain.strategies.optimizer_names import named_state, parameter_names, renumbered
from drivetrain.strategies.original_names import renamed_for
from drivetrain.strategies.prepared import Prepared

STATE_FILE = "state.pt"


def replica_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Modules, optimizers and stateful objects as their state dicts; plain data as it is."""
    names, edited = parameter_names(state), edits_of(state)
    return {name: edited[name] if name in edited else _state_of(value, names) for name, value in state.items()}


def add_replica(state: Mapping[str, Any], files: StateFiles) -> None:
    """Save the whole state as one file.

    Raises:
        CheckpointError: It cannot be written.
    """
    files.add(STATE_FILE, replica_state(state))


def read_replica(state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
    """Put a state back, whether it was sharded or not; returns plain data, and what the file holds beyond `state`.

    Raises:
        CheckpointError: A name is missing, or a module does not fit and `strict` is set.
    """
    saved = read_saved(state, directory, strict=strict)
    if any(directory.glob("*.distcp")):
        from drivetrain.strategies.tensor_files import ShardReader  # only here: it takes a while to import

        shards = ShardReader(directory)
        saved = shards.whole(saved)
        shards.read()
    return put_back(state, saved, strict=strict)


def read_saved(state: Mapping[str, Any], directory: Path, *, strict: bool) -> dict[str, Any]:
    """What is saved under each name, with the parameters of optimizers numbered as they are now.

    Raises:
        CheckpointError: A name is missing and `strict` is set, or an optimizer has other parameters.
    """
    read: dict[str, Any] = {} if was_read(state) else read_tensors(directory / STATE_FILE)
    saved = {**read, **edits_of(state)}
    missing = [name for name in state if name not in saved]
    if missing and strict:
        raise CheckpointError(
            f"{directory} holds {', '.join(sorted(saved))}, but not {', '.join(missing)}.",
            code="checkpoint-keys",
            do="Load what was saved, or pass strict=False.",
        )
    return numbered(state, saved)


def numbered(state: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved, with the parameters of modules named, and those of optimizers numbered, as those in `state` are.

    Raises:
        CheckpointError: An optimizer has other parameters.
    """
    names, result = parameter_names(state), dict(saved)
    for name, target in state.items():
        if name in saved and isinstance(target, Optimizer):
            result[name] = renumbered(saved[name], target, names, name=name)
        elif name in saved and isinstance(target, Prepared):
            result[name] = renamed_for(saved[name], target.original.state_dict())
    return result


def put_back(state: Mapping[str, Any], saved: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Load what is saved under each name; returns what nothing was given for, and plain data.

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
        result = module.load_state_dict(renamed_for(saved, module.state_dict()), strict=False)
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


def _state_of(value: Any, names: Mapping[int, str]) -> Any:
    if isinstance(value, Prepared):
        return value.original.state_dict()
    if isinstance(value, Optimizer):
        return named_state(value, names)
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return value
