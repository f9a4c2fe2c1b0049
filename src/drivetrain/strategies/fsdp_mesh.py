"""The mesh over which parameters are sharded."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo

SHARD_AXIS = "shard"
REPLICATE_AXIS = "replicate"
DATA_AXIS = "data_parallel"
TENSOR_AXIS = "tensor_parallel"


def count_replicas(num_replicas: int | Literal["nodes"], cluster: ClusterInfo) -> int:
    """How many there are, where it is one for each machine."""
    return cluster.num_nodes if num_replicas == "nodes" else num_replicas


def make_mesh(
    device_type: str, num_replicas: int, tensor_parallel_size: int | None, stack: ExitStack, *, timeout_s: float
) -> DeviceMesh:
    """All ranks in one axis, or in rows of neighbours: a row is a replica, or shares each layer.

    Ranks: all.

    Args:
        device_type: Where tensors live.
        num_replicas: Rows, where a row is a replica.
        tensor_parallel_size: Ranks in a row, where they share layers; `None` for no such axis.
        stack: Ends the groups that are made.
        timeout_s: Of their collectives.

    Raises:
        ConfigError: The ranks cannot be cut into such rows.
    """
    world_size = dist.get_world_size()
    _check_sizes(num_replicas, tensor_parallel_size, world_size)
    if num_replicas == 1 and tensor_parallel_size is None:
        world = dist.group.WORLD
        assert world is not None, "the default process group is made before the mesh"
        return DeviceMesh.from_group(world, device_type, mesh_dim_names=(SHARD_AXIS,))
    is_hybrid = num_replicas > 1
    rows = torch.arange(world_size).view((num_replicas, -1) if is_hybrid else (-1, tensor_parallel_size or 1))
    names = (REPLICATE_AXIS, SHARD_AXIS) if is_hybrid else (DATA_AXIS, TENSOR_AXIS)
    groups = [_own_group(lists, stack, timeout_s=timeout_s) for lists in (rows.T.tolist(), rows.tolist())]
    return DeviceMesh.from_group(groups, device_type, mesh=rows, mesh_dim_names=names)


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The axes of a mesh over which parameters are sharded, and gradients reduced."""
    return mesh[DATA_AXIS] if TENSOR_AXIS in (mesh.mesh_dim_names or ()) else mesh


def tensor_mesh(mesh: DeviceMesh) -> DeviceMesh | None:
    """The axis of a mesh whose ranks share layers; `None` where none do."""
    return mesh[TENSOR_AXIS] if TENSOR_AXIS in (mesh.mesh_dim_names or ()) else None


def _check_sizes(num_replicas: int, tensor_parallel_size: int | None, world_size: int) -> None:
    is_number = isinstance(num_replicas, int) and num_replicas > 0
    if not is_number or (num_replicas > 1 and (world_size % num_replicas or world_size // num_replicas < 2)):
        raise ConfigError(
            f"num_replicas={num_replicas!r} cannot be made of {world_size} ranks.",
            code="num-replicas",
            do="It must divide the ranks, and leave two or more for each replica; 'nodes' is one for each machine.",
        )
    if tensor_parallel_size is None:
        return
    is_number = isinstance(tensor_parallel_size, int) and tensor_parallel_size > 0
    if not is_number or world_size % tensor_parallel_size or num_replicas > 1:
        raise ConfigError(
            f"tensor_parallel_size={tensor_parallel_size!r} with num_replicas={num_replicas} cannot be made of "
            f"{world_size} ranks.",
            code="tensor-parallel",
            do="It must divide the ranks, and there are no replicas then.",
        )


def _own_group(lists: list[list[int]], stack: ExitStack, *, timeout_s: float) -> dist.ProcessGroup:
    own, groups = dist.new_subgroups_by_enumeration(lists, timeout=timedelta(seconds=timeout_s))

    def leave() -> None:
        if dist.is_initialized():
            dist.destroy_process_group(own)

    stack.callback(leave)
    assert groups
    group: dist.ProcessGroup = own
    return group
