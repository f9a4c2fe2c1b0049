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


def count_replicas(num_replicas: int | Literal["nodes"], cluster: ClusterInfo) -> int:
    """How many there are, where it is one for each machine."""
    return cluster.num_nodes if num_replicas == "nodes" else num_replicas


def make_mesh(device_type: str, num_replicas: int, stack: ExitStack, *, timeout_s: float) -> DeviceMesh:
    """All ranks in one axis, or in `num_replicas` rows of neighbours.

    Ranks: all.

    Args:
        device_type: Where tensors live.
        num_replicas: Rows.
        stack: Ends the groups that are made.
        timeout_s: Of their collectives.

    Raises:
        ConfigError: The ranks cannot be cut into that many rows of two or more.
    """
    world_size = dist.get_world_size()
    if num_replicas == 1:
        world = dist.group.WORLD
        assert world is not None, "the default process group is made before the mesh"
        return DeviceMesh.from_group(world, device_type, mesh_dim_names=(SHARD_AXIS,))
    is_number = isinstance(num_replicas, int) and num_replicas > 0
    if not is_number or world_size % num_replicas or world_size // num_replicas < 2:
        raise ConfigError(
            f"num_replicas={num_replicas!r} cannot be made of {world_size} ranks.",
            code="num-replicas",
            do="It must divide the ranks, and leave two or more for each replica; 'nodes' is one for each machine.",
        )
    rows = torch.arange(world_size).view(num_replicas, -1)
    groups = [_own_group(lists, stack, timeout_s=timeout_s) for lists in (rows.T.tolist(), rows.tolist())]
    return DeviceMesh.from_group(groups, device_type, mesh=rows, mesh_dim_names=(REPLICATE_AXIS, SHARD_AXIS))


def _own_group(lists: list[list[int]], stack: ExitStack, *, timeout_s: float) -> dist.ProcessGroup:
    own, groups = dist.new_subgroups_by_enumeration(lists, timeout=timedelta(seconds=timeout_s))

    def leave() -> None:
        if dist.is_initialized():
            dist.destroy_process_group(own)

    stack.callback(leave)
    assert groups
    group: dist.ProcessGroup = own
    return group
