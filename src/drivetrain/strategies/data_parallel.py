"""One rank drives several GPUs: each batch is cut over them, and the weighted mean of their losses is taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import LaunchError
from drivetrain.base.tree import batch_size_of
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives, SoloCollectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies.prepared import Prepared, Traits, check_method, check_methods_exist
from drivetrain.strategies.replicated_state import add_replica, read_replica, replica_state
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy


class DataParallel(Strategy):
    """One process, several GPUs, `torch.nn.DataParallel` underneath. DDP is faster; this needs no launch.

    A batch is cut along dim 0. The losses of the parts are averaged by their samples, or by the weights that the step
    returned, so that the result is that of one device. Where there are not two devices, it says so and runs on one.
    """

    traits = Traits("dp", is_distributed=False, syncs_gradients=False, shards_state=False, compiles=False)

    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """Collectives of one rank.

        Ranks: all.

        Raises:
            LaunchError: There are more ranks.
        """
        if cluster.world_size > 1:
            raise LaunchError(
                f"DataParallel drives all devices from one rank, but {cluster.world_size} ranks were started.",
                code="world-size",
                do="Use strategy='ddp', or start one process.",
                rank=(cluster.rank, cluster.world_size),
            )
        return SoloCollectives()

    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring the module to the first device and wrap it over all of them.

        Ranks: all.
        """
        names = check_methods_exist(module, methods)
        running = self.running
        module.to(device=running.device, dtype=running.precision.parameter_dtype)
        context = running.precision.context_for(running.device.type)
        gpus = [device.index for device in running.devices if device.type == "cuda"]
        if len(gpus) >= 2:
            return Prepared(
                module, _Replicas(_CountingRouter(module, context), gpus), names, tuple(module.parameters())
            )
        warnings.warn(
            f"strategy='dp' wants two GPUs or more and has {len(gpus)}: it runs on {running.device}, in one piece.",
            stacklevel=2,
        )
        return Prepared(module, Router(module, context), names, tuple(module.parameters()))

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method through the wrapper, on a part of the batch on each device.

        Ranks: all.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "DataParallel")
        return prepared.wrapped(method, *args, **kwargs)

    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Nothing: replicas are summed inside backward, within one process; there is no sync to defer.

        Ranks: all.
        """
        return nullcontext()

    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Plain backward, which goes through the replicas.

        Ranks: all.
        """
        self.run_backward(loss, inputs)

    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Nothing: there is one rank.

        Ranks: all.
        """

    def data_shard(self) -> DataShard:
        """All of it: the wrapper cuts each batch."""
        return DataShard(0, 1)

    def sync_buffers(self, prepared: Prepared) -> None:
        """Nothing: the first device's buffers are the module's.

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


class _CountingRouter(Router):
    """A router that also says how many samples its part of the batch held."""

    def forward(self, method: str | None, *args: Any, **kwargs: Any) -> Any:
        return super().forward(method, *args, **kwargs), batch_size_of(args[0]) if args else 1


class _Replicas(nn.DataParallel[Router]):
    """`nn.DataParallel` whose results are joined by weight instead of stacked."""

    def gather(self, outputs: Any, output_device: Any) -> Any:
        device = torch.device("cuda", output_device) if isinstance(output_device, int) else output_device
        return join_outputs([output for output, _ in outputs], [size for _, size in outputs], device)


def join_outputs(outputs: Sequence[Any], sizes: Sequence[int], device: torch.device) -> Any:
    """Join what the parts of one batch returned.

    Losses become their mean, weighted by samples, or by `"weight"` where the step returned it; weights add up;
    tensors with a batch dim are put together in order; everything else is a list with one entry for each part.

    Args:
        outputs: What each part returned.
        sizes: Samples of each part.
        device: Where the result goes.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        if first.ndim:
            return torch.cat([output.to(device) for output in outputs])
        return _weighted_mean(outputs, list(sizes), device)
    if isinstance(first, Mapping):
        joined = {key: join_outputs([o[key] for o in outputs], sizes, device) for key in first if key != "weight"}
        if "weight" in first:
            weights = [output["weight"] for output in outputs]
            joined["loss"] = _weighted_mean([output["loss"] for output in outputs], weights, device)
            joined["weight"] = sum(w.to(device) if isinstance(w, Tensor) else w for w in weights)
        return joined
    if type(first) in (tuple, list):
        return type(first)(join_outputs(parts, sizes, device) for parts in zip(*outputs, strict=True))
    return None if first is None else list(outputs)


def _weighted_mean(values: Sequence[Tensor], weights: Sequence[Any], device: torch.device) -> Tensor:
    moved = [w.to(device) if isinstance(w, Tensor) else w for w in weights]
    total = sum(moved)
    weighted: Any = sum(value.to(device) * weight for value, weight in zip(values, moved, strict=True))
    result: Tensor = weighted / total
    return result
