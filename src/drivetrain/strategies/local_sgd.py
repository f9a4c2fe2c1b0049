"""Local SGD: each rank steps on its own gradients; parameters are averaged over ranks after some steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies.flat_message import broadcast_in_place
from drivetrain.strategies.local_round import (
    Round,
    add_rounds,
    agreed_state,
    check_sync_every,
    read_rounds,
    refuse_sync_batchnorm,
    round_of,
)
from drivetrain.strategies.model_check import check_same_model
from drivetrain.strategies.prepared import Prepared, Traits, as_list, check_method, check_methods_exist
from drivetrain.strategies.process_group import (
    DEFAULT_TIMEOUT_S,
    default_backend,
    join_process_group,
    make_group_collectives,
)
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy


class LocalSGD(Strategy):
    """Each rank steps on its own gradients; every `sync_every` steps parameters become their mean over ranks.

    **Not exact**: between two syncs the ranks are different models, and the result depends on their number. Each rank
    counts the same in the mean, whatever its weights. Optimizer states are never synced. Buffers become those of rank
    0 at each sync. Method: Stich 2019, "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767.

    Args:
        sync_every: Optimizer steps from one sync to the next; 1 with plain SGD is what DDP does.
        start: How ranks are started on this machine when nothing else did, as for `DDP`.
        backend: Backend of the default process group; by default gloo, with nccl for CUDA tensors.
        timeout_s: Seconds after which a collective that does not complete fails.
    """

    traits = Traits("local_sgd", is_distributed=True, syncs_gradients=False, shards_state=False)

    def __init__(
        self,
        sync_every: int = 8,
        *,
        start: Literal["script", "spawn", "fork"] = "script",
        backend: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__()
        check_sync_every(sync_every)
        self.sync_every = sync_every
        self.start = start
        self.backend = backend
        self.timeout_s = timeout_s

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Make or adopt the default process group; the override point for everything beside it.

        Ranks: all.
        """
        backend = self.backend or default_backend(self.device_type)
        join_process_group(cluster, stack, backend=backend, timeout_s=self.timeout_s)

    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """Collectives over all ranks, with a gloo group of their own for small messages.

        Ranks: all.
        """
        return make_group_collectives(device, stack, timeout_s=self.timeout_s)

    def use_sync_batchnorm(self) -> None:
        """Refused: ranks have no forward in common.

        Raises:
            ConfigError: Always.
        """
        raise refuse_sync_batchnorm(self.traits.name)

    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring the module to the device, and give all ranks rank 0's parameters and buffers; nothing is wrapped.

        Ranks: all (one broadcast for each dtype).

        Raises:
            ModelError: The ranks hold different modules.
        """
        names = check_methods_exist(module, methods)
        running = self.running
        module.to(device=running.device, dtype=running.precision.parameter_dtype)
        check_same_model(module, running.collectives)
        broadcast_in_place((*module.parameters(), *module.buffers()))
        router = Router(module, running.precision.context_for(running.device.type))
        kept = Round(module, sync_every=self.sync_every)
        return Prepared(module, router, names, tuple(module.parameters()), kept)

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method on this rank's own parameters; the router adds the precision's context.

        Ranks: any.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "LocalSGD")
        return prepared.wrapped.forward(method, *args, **kwargs)

    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Nothing: gradients are never synced; parameters are, in `end_step`.

        Ranks: any.
        """
        return nullcontext()

    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Plain backward; gradients stay on this rank.

        Ranks: any.
        """
        self.run_backward(loss, inputs)

    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Nothing: gradients are not synced.

        Ranks: any.
        """

    def end_step(self, prepared: Prepared | Sequence[Prepared]) -> None:
        """Count a step; after `sync_every` of them average parameters, and broadcast rank 0's buffers.

        Ranks: all (nothing is sent but at the end of a round: one all-reduce and one broadcast for each dtype).

        Raises:
            ModelError: A parameter became trainable after `prepare`, and would not be synced.
        """
        for one in as_list(prepared):
            round_of(one).end_step()

    @contextmanager
    def agreed_model(self, prepared: Prepared) -> Iterator[None]:
        """The mean of all ranks' parameters, and rank 0's buffers, for a block; then this rank's own parameters again.

        Ranks: all (one all-reduce and one broadcast for each dtype; no all-reduce right after a sync).
        """
        self.sync_buffers(prepared)
        with round_of(prepared).agreed():
            yield

    def end_training(self, prepared: Prepared) -> None:
        """Leave all ranks with the mean of their parameters. What is saved afterwards is still each rank's own.

        Ranks: all (as `agreed_model`).
        """
        self.sync_buffers(prepared)
        round_of(prepared).show_agreed()

    def data_shard(self) -> DataShard:
        """Each rank reads its own share."""
        return DataShard(self.collectives.rank, self.collectives.world_size)

    def sync_buffers(self, prepared: Prepared) -> None:
        """Broadcast rank 0's buffers.

        Ranks: all (one broadcast for each dtype).
        """
        round_of(prepared).share_buffers()

    def save_state(self, state: Mapping[str, Any], files: StateFiles) -> None:
        """Each rank saves its own parameters and optimizers; rank 0 also the mean, as one model for everybody.

        Ranks: all (one all-reduce for each dtype; none right after a sync).
        """
        add_rounds(state, files, strategy=self.traits.name, collectives=self.collectives)

    def load_state(self, state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
        """Each rank reads its own; another number of ranks goes on from the mean, and says so.

        Ranks: all.
        """
        return read_rounds(state, directory, strategy=self.traits.name, collectives=self.collectives, strict=strict)

    def full_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Modules as copies of the agreed model; the rest as it is on this rank.

        Ranks: all (as `agreed_model`).
        """
        return agreed_state(state)
