"""Joining and leaving the default process group."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from drivetrain.base.errors import ProcessGroupError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives, GroupCollectives
from drivetrain.comm.shared_board import open_board

DEFAULT_TIMEOUT_S = 1800.0

_GRACE_S = 0.02

# By the launcher's address: its store, which lives as long as the process, and how often a group was made on it.
_rendezvous_stores: dict[tuple[str, int, int], tuple[Store, Iterator[int]]] = {}


def join_process_group(
    cluster: ClusterInfo,
    stack: ExitStack,
    *,
    backend: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    store: Store | None = None,
    options: dict[str, Any] | None = None,
) -> None:
    """Make the default process group and register its end on `stack`; or adopt the one that is there.

    A group that exists is adopted when its backend, rank and size fit, and it is left alive at the end.

    Ranks: all.

    Args:
        cluster: This rank among the others.
        stack: Unwound when the strategy closes.
        backend: `"gloo"`, `"nccl"`, `"cpu:gloo,cuda:nccl"`, ...
        timeout_s: Seconds after which a collective that does not complete fails.
        store: Where the ranks find each other; by default the launcher's.
        options: Further arguments of `torch.distributed.init_process_group`.

    Raises:
        ProcessGroupError: A group exists that does not fit.
    """
    if dist.is_initialized():
        _check_adoptable(cluster, backend)
        return
    if store is None:
        store = _launcher_store(cluster, timeout_s)
    dist.init_process_group(
        backend,
        store=store,
        rank=cluster.rank,
        world_size=cluster.world_size,
        timeout=timedelta(seconds=timeout_s),
        **(options or {}),
    )
    stack.callback(_leave)


def make_cpu_group(stack: ExitStack, *, timeout_s: float) -> dist.ProcessGroup:
    """A gloo group of all ranks for objects and small messages.

    Ranks: all.
    """
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def leave() -> None:
        if dist.is_initialized():
            let_messages_go()
            dist.destroy_process_group(group)

    stack.callback(leave)
    return group


def make_group_collectives(device: torch.device, stack: ExitStack, *, timeout_s: float) -> GroupCollectives:
    """Collectives over all ranks, with a gloo group of their own for small messages, or shared memory where there is.

    Ranks: all.
    """
    collectives = GroupCollectives(device, cpu_group=make_cpu_group(stack, timeout_s=timeout_s))
    collectives.board = open_board(collectives, timeout_s=timeout_s)
    if collectives.board is not None:
        stack.callback(collectives.board.close)
    return collectives


def make_side_collectives(collectives: Collectives, stack: ExitStack, *, timeout_s: float) -> Collectives:
    """Collectives of the same ranks in a group of its own, for another thread: what it says never mixes with training.

    Ranks: all.

    Args:
        collectives: Of the run.
        stack: The end of the group is registered on it; to be unwound before the run's own groups are destroyed.
        timeout_s: Seconds after which a message that does not arrive fails.
    """
    if collectives.world_size == 1 and not isinstance(collectives, GroupCollectives):
        return collectives
    return GroupCollectives(torch.device("cpu"), cpu_group=make_cpu_group(stack, timeout_s=timeout_s))


def default_backend(device_type: str) -> str:
    """gloo for CPU tensors, and the device's own beside it."""
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"


def _leave() -> None:
    # Wrappers hold buckets that gloo threads may still touch while Python ends: drop them before the group
    # (pytorch#190489, open with torch 2.13).
    gc.collect()
    if dist.is_initialized():
        let_messages_go()
        dist.destroy_process_group()


def let_messages_go() -> None:
    """Give gloo's threads a moment to free the messages that they have sent, before their group is freed.

    A group that is freed waits for its threads while it holds Python's lock, and a thread that frees a message waits
    for that lock (torch 2.13): whoever comes second never ends.
    """
    time.sleep(_GRACE_S)


def _check_adoptable(cluster: ClusterInfo, backend: str) -> None:
    found = (dist.get_backend(), dist.get_rank(), dist.get_world_size())
    wanted_backends = {part.split(":")[-1] for part in backend.split(",")}
    found_backends = {part.split(":")[-1] for part in str(dist.get_backend_config()).split(",")}
    if found[1:] == (cluster.rank, cluster.world_size) and wanted_backends <= found_backends:
        return
    raise ProcessGroupError(
        f"A process group exists already with backend {found[0]!r}, rank {found[1]} of {found[2]}; this run needs "
        f"backend {backend!r}, rank {cluster.rank} of {cluster.world_size}.",
        code="process-group",
        do="Make the group to fit, destroy it before the run, or ask for devices and a backend that fit it.",
    )


def _launcher_store(cluster: ClusterInfo, timeout_s: float) -> Store:
    if cluster.launched_by == "none":
        return HashStore()
    key = (cluster.main_address, cluster.main_port, cluster.restart_count)
    if key not in _rendezvous_stores:
        # Where rank 0 hosts the store itself, its port cannot be bound twice.
        store, _, _ = next(rendezvous("env://", cluster.rank, cluster.world_size, timeout=timedelta(seconds=timeout_s)))
        _rendezvous_stores[key] = store, itertools.count()
    store, numbers = _rendezvous_stores[key]
    # A key space of its own for each group: what an earlier one left must not be read again.
    return PrefixStore(f"drivetrain-{next(numbers)}", store)
