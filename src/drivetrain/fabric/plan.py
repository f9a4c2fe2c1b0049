"""From what the user wrote to what will run: devices, ranks, strategy, precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drivetrain.base.errors import ConfigError, LaunchError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.device.accelerator import Accelerator
from drivetrain.device.resolve import DeviceRequest, resolve_devices
from drivetrain.launch.world import check_world
from drivetrain.precision.precision import Precision, make_precision
from drivetrain.strategies.by_name import make_strategy
from drivetrain.strategies.strategy import Strategy


@dataclass(frozen=True)
class Plan:
    """What will run.

    Attributes:
        strategy: How.
        precision: In which number formats.
        request: On which devices of each machine.
        num_nodes: On how many machines.
        max_restarts: How often ranks that drivetrain starts are all started again after a failure.
    """

    strategy: Strategy
    precision: Precision
    request: DeviceRequest
    num_nodes: int
    max_restarts: int = 0

    @property
    def num_local_ranks(self) -> int:
        """Ranks that this machine was asked for."""
        return self.request.num_devices if self.strategy.traits.is_distributed else 1

    @property
    def num_ranks(self) -> int:
        """Ranks that all machines were asked for."""
        return self.num_local_ranks * self.num_nodes

    def needs_launch(self, cluster: ClusterInfo) -> bool:
        """Ranks have to be started: several, or one that is watched, and nothing outside has started them."""
        return cluster.launched_by == "none" and (self.num_ranks > 1 or self.max_restarts > 0)

    def open(self, cluster: ClusterInfo) -> None:
        """Open the strategy in this rank.

        Ranks: all.

        Raises:
            LaunchError: The ranks that are there are not those that were asked for.
        """
        if self.strategy.is_open:
            return
        if not (self.request.is_auto and self.num_nodes == 1):
            check_world(cluster, self.num_ranks)
        local_rank = cluster.local_rank if self.strategy.traits.is_distributed else 0
        device = self.request.device_of(local_rank)
        devices: tuple[torch.device, ...] = (device,)
        if not self.strategy.traits.is_distributed and self.request.kind == "cuda":
            devices = tuple(torch.device("cuda", index) for index in self.request.indices)
        self.strategy.open(cluster, device, precision=self.precision, devices=devices)


def make_plan(
    *,
    accelerator: str | Accelerator = "auto",
    devices: int | str | Sequence[int] = "auto",
    num_nodes: int = 1,
    strategy: Strategy | str = "auto",
    precision: Precision | str | int | None = None,
    max_restarts: int = 0,
) -> Plan:
    """Work out the plan; nothing is started.

    Raises:
        ConfigError: Arguments that mean nothing, or do not fit together.
        DeviceError: A device that is not there.
        LaunchError: Several machines without a launcher that started their ranks.
    """
    if not isinstance(num_nodes, int) or num_nodes < 1:
        raise ConfigError(f"num_nodes={num_nodes!r} is not a number of machines.", code="devices", do="Use 1 or more.")
    request = resolve_devices(accelerator, devices)
    cluster = current_cluster()
    num_ranks = cluster.world_size if cluster.world_size > 1 else request.num_devices * num_nodes
    made = make_strategy(strategy, num_ranks=num_ranks)
    plan = Plan(made, make_precision(precision), request, num_nodes, check_restarts(max_restarts))
    if plan.strategy.traits.name == "single_device" and request.num_devices > 1 and not request.is_auto:
        raise ConfigError(
            f"strategy='single_device' uses one device; devices={devices!r} asks for {request.num_devices}.",
            code="devices",
            do="Use devices=1, or strategy='ddp'.",
        )
    if num_nodes > 1 and cluster.launched_by == "none":
        raise LaunchError(
            f"num_nodes={num_nodes}, but nothing has started this process as one rank of several machines.",
            code="num-nodes",
            do="Start it on every machine with torchrun --nnodes, for example.",
        )
    return plan


def check_restarts(max_restarts: int) -> int:
    """A whole number from 0.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(max_restarts, int) and not isinstance(max_restarts, bool) and max_restarts >= 0:
        return max_restarts
    raise ConfigError(
        f"max_restarts={max_restarts!r} is not a number of restarts.",
        code="max-restarts",
        do="Use 0 for none, or how often all ranks may be started again after a failure.",
    )
