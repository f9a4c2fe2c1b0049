"""What a trainer knows of its ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.comm.collectives import Collectives
from drivetrain.device.accelerator import Accelerator
from drivetrain.fabric.fabric import Fabric
from drivetrain.strategies.strategy import Strategy


class RankView:
    """This rank among the others; before a run as far as it is known."""

    _fabric: Fabric

    @property
    def strategy(self) -> Strategy:
        """Owns everything distributed."""
        return self._fabric.strategy

    @property
    def collectives(self) -> Collectives:
        """How this rank talks to the others."""
        return self._fabric.collectives

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._fabric.device

    @property
    def accelerator(self) -> Accelerator:
        """The kind of device."""
        return self._fabric.accelerator

    @property
    def precision(self) -> str:
        """The number formats of the run, by name: `"bf16-mixed"`."""
        return self._fabric.plan.precision.name

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[None]:
        """Make a module's parameters on the run's device and in its dtype straight away; see `Fabric.init_module`."""
        return self._fabric.init_module(empty_init)

    @property
    def num_devices(self) -> int:
        """Devices of this machine."""
        return self._fabric.plan.request.num_devices

    @property
    def num_nodes(self) -> int:
        """Machines."""
        return self._fabric.plan.num_nodes

    @property
    def global_rank(self) -> int:
        """This rank among all; 0 before a run."""
        return self._cluster.rank

    @property
    def local_rank(self) -> int:
        """This rank among those of this machine; 0 before a run."""
        return self._cluster.local_rank

    @property
    def node_rank(self) -> int:
        """This machine among all."""
        return self._cluster.node_rank

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self._cluster.world_size if self.strategy.is_open else self._fabric.plan.num_ranks

    @property
    def num_restarts(self) -> int:
        """How often all ranks of this run were started again after a failure, until now."""
        return self._cluster.restart_count

    @property
    def is_global_zero(self) -> bool:
        """This is rank 0."""
        return self.global_rank == 0

    @property
    def _cluster(self) -> ClusterInfo:
        return self.strategy.cluster if self.strategy.is_open else current_cluster()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if self.is_global_zero:
            print(*args, **kwargs)
