"""One rank, one device: nothing is wrapped, nothing is synced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import LaunchError
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives, SoloCollectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies.prepared import Prepared, Traits, check_method, check_methods_exist
from drivetrain.strategies.replicated_state import add_replica, read_replica, replica_state
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy


class SingleDevice(Strategy):
    """One rank, one device."""

    traits = Traits("single_device", is_distributed=False, syncs_gradients=False, shards_state=False)

    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """Collectives of one rank.

        Ranks: all.

        Raises:
            LaunchError: There are more ranks, which this strategy would train apart from each other.
        """
        if cluster.world_size > 1:
            raise LaunchError(
                f"SingleDevice runs on one rank, but {cluster.world_size} were started: each would train alone.",
                code="world-size",
                do="Use strategy='ddp', or start one process.",
                rank=(cluster.rank, cluster.world_size),
            )
        return SoloCollectives()

    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring the module to the device and the parameters' dtype; nothing is wrapped.

        Ranks: all.
        """
        names = check_methods_exist(module, methods)
        running = self.running
        module.to(device=running.device, dtype=running.precision.parameter_dtype)
        context = running.precision.context_for(running.device.type)
        return Prepared(module, Router(module, context), names, tuple(module.parameters()))

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method; the router adds the precision's context.

        Ranks: all.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "SingleDevice")
        if method == "forward" or prepared.wrapped.context is not None:
            return prepared.wrapped.forward(method, *args, **kwargs)
        return getattr(prepared.original, method)(*args, **kwargs)  # what the router would do

    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Nothing: one rank has no sync to defer.

        Ranks: all.
        """
        return _NOTHING

    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Plain backward.

        Ranks: all.
        """
        if self.loss_scale is not None:
            loss = self.loss_scale.scaled(loss)
        if self.own_backward is None or inputs is not None:
            loss.backward(inputs=inputs)
        else:
            self.own_backward(loss)

    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Nothing: one rank has no sync to take part in.

        Ranks: all.
        """

    def data_shard(self) -> DataShard:
        """All of it."""
        return DataShard(0, 1)

    def sync_buffers(self, prepared: Prepared) -> None:
        """Nothing: there is one copy.

        Ranks: all.
        """

    def save_state(self, state: Mapping[str, Any], files: StateFiles) -> None:
        """One file.

        Ranks: all.
        """
        add_replica(state, files)

    def load_state(self, state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
        """Read one file.

        Ranks: all.
        """
        return read_replica(state, directory, strict=strict)

    def full_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state as it is.

        Ranks: all.
        """
        return replica_state(state)


_NOTHING: AbstractContextManager[None] = nullcontext()
