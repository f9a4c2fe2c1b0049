"""State of which each rank holds a share: rank 0 writes what is not sharded, each rank writes its shards.

`state.pt` is the same nested state that a strategy with replicas writes; where a tensor is sharded, it holds the name
under which the shards are found. So either kind of checkpoint loads into either kind of strategy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from drivetrain.base.tree import map_tensors
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.strategies.fsdp_parts import ShardedModule
from drivetrain.strategies.optimizer_names import NAMES_KEY, parameters_of
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.replicated_state import STATE_FILE, put_back, read_saved, replica_state
from drivetrain.strategies.saved_tensor import SHARDED_KEY
from drivetrain.strategies.tensor_files import ShardReader, add_sharded


def add_shards(state: Mapping[str, Any], files: StateFiles, *, is_global_zero: bool) -> None:
    """Save this rank's share of a state.

    Ranks: all.

    Raises:
        CheckpointError: It cannot be written.
    """
    reshard(state)
    tensors: dict[str, DTensor] = {}
    plain = {name: _without_shards(value, name, tensors) for name, value in replica_state(state).items()}
    if tensors:
        add_sharded(tensors, files)
    if is_global_zero:
        files.add(STATE_FILE, plain)


def reshard(state: Mapping[str, Any]) -> None:
    """Let every module show its shards, and not what a forward left behind."""
    for value in state.values():
        if isinstance(value, ShardedModule):
            value.reshard()


def _without_shards(value: Any, path: str, tensors: dict[str, DTensor]) -> Any:
    """A copy in which a name is in the place of each sharded tensor, which goes to `tensors`."""
    if isinstance(value, DTensor):
        assert path not in tensors, f"two sharded tensors would be called {path!r}"
        tensors[path] = value
        return {SHARDED_KEY: path}
    if isinstance(value, Mapping):
        names = value.get(NAMES_KEY)
        if names is not None:  # an optimizer
            named = {key: _without_shards(one, f"{path}.{names[key]}", tensors) for key, one in value["state"].items()}
            return {**value, "state": named}
        if not any(isinstance(one, (Mapping, list, tuple, DTensor)) for one in value.values()):
            return value
        copied = {key: _without_shards(one, f"{path}.{key}", tensors) for key, one in value.items()}
        return copied
    if type(value) in (list, tuple):
        return type(value)(_without_shards(one, f"{path}.{index}", tensors) for index, one in enumerate(value))
    return value


def read_shards(state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
    """Put a state back that was saved by any strategy; returns plain data, and what the file holds beyond `state`.

    Of the latter, sharded tensors are not read: their names are in their place.

    Ranks: any; each reads what it needs.

    Raises:
        CheckpointError: A name is missing, or a module does not fit and `strict` is set.
    """
    reshard(state)
    saved = read_saved(state, directory, strict=strict)
    shards = ShardReader(directory)
    for name, value in saved.items():
        target = state.get(name)
        if isinstance(target, Prepared):
            own = target.original.state_dict()
            saved[name] = {key: _sharded_like(one, own.get(key), shards) for key, one in value.items()}
        elif isinstance(target, Optimizer):
            saved[name] = _optimizer_state(value, target, shards)
        elif name in state:
            saved[name] = shards.whole(value)
    shards.read()
    return put_back(state, saved, strict=strict)


def _optimizer_state(saved: dict[str, Any], optimizer: Optimizer, shards: ShardReader) -> dict[str, Any]:
    parameters = parameters_of(optimizer)
    state = {
        number: {key: _sharded_like(one, parameters[number], shards) for key, one in own.items()}
        if number < len(parameters)
        else shards.whole(own)
        for number, own in saved["state"].items()
    }
    return {**saved, "state": state}


def _sharded_like(value: Any, target: Any, shards: ShardReader) -> Any:
    """A saved tensor, sharded as the one that it belongs to, if it has its shape."""
    is_name = isinstance(value, Mapping) and set(value) == {SHARDED_KEY}
    if isinstance(value, DTensor):
        return value
    if not isinstance(target, DTensor):
        return shards.whole(value)
    if is_name:
        return shards.ask(value[SHARDED_KEY], like=target)
    return in_shards(value, target) if isinstance(value, Tensor) else shards.whole(value)


def in_shards(value: Any, target: Any) -> Any:
    """A whole tensor, sharded as the one that it belongs to, if that is sharded and has its shape; else as it is.

    Ranks: any; each keeps its own share.
    """
    if not isinstance(target, DTensor) or not isinstance(value, Tensor) or value.shape != target.shape:
        return value
    return as_shards_of(value, target)


def as_shards_of(value: Tensor, target: Any) -> DTensor:
    """A whole tensor, sharded as another one of its shape is.

    Ranks: any; each keeps its own share.
    """
    size, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    own = value[tuple(slice(start, start + length) for start, length in zip(offset, size, strict=True))]
    layout = target._spec
    meta = layout.tensor_meta._replace(dtype=value.dtype)
    # Not with `DTensor.from_local`, which would bring offloaded shards back to the device of their mesh.
    return DTensor(own.to(target.device), dataclasses.replace(layout, tensor_meta=meta), requires_grad=False)


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with whole tensors, on every rank.

    Ranks: all (one all-gather for each sharded tensor).
    """
    reshard(state)
    return {name: map_tensors(_whole, value) for name, value in replica_state(state).items()}


def _whole(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole.detach()
