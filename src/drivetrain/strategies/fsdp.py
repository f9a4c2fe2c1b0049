"""Fully sharded data parallel: each rank holds a share of parameters, gradients and optimizer state (torch's FSDP2)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies import sharded_gradients
from drivetrain.strategies.clip import check_clip
from drivetrain.strategies.fsdp_block import SyncBlock, check_defer, evaluation_block
from drivetrain.strategies.fsdp_idle import finish_backward, join_idle, reduce_left
from drivetrain.strategies.fsdp_mesh import count_replicas, make_mesh, sharding_mesh, tensor_mesh
from drivetrain.strategies.fsdp_parts import (
    ShardedModule,
    adopt_parameters,
    checkpoint_activations,
    choose_parts,
    sharded,
    with_sync_batchnorm,
)
from drivetrain.strategies.fsdp_plain import reduce_plain
from drivetrain.strategies.fsdp_trace import Trace
from drivetrain.strategies.model_check import check_same_model
from drivetrain.strategies.module_choice import Policy
from drivetrain.strategies.prepared import Prepared, Traits, as_list, check_method, check_methods_exist
from drivetrain.strategies.process_group import (
    DEFAULT_TIMEOUT_S,
    default_backend,
    join_process_group,
    make_group_collectives,
)
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy

# torch's FSDP is imported where it is used first: it takes a while, and changes the filters of warnings.
if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

Defer = Literal["reduce", "all-reduce", "none"]

_opened = itertools.count()  # strategies of this process: names in a store that several of them may share


class FSDP(Strategy):
    """Each rank holds a share of every parameter; parts are gathered when they run (`torch.distributed.fsdp`, FSDP2).

    Args:
        shard: Which submodules have a parameter group, and so collectives, of their own: classes, a function of a
            module, or a wrap policy of torch. By default each module in an `nn.ModuleList`. All the rest is one group.
        reshard_after_forward: Free a part after its forward and gather it again in backward. `None` is torch's default:
            all but the rest of the module. A number is the ranks over which parts stay sharded in between.
        defer: What waits for the last micro-batch of a window: `"reduce"`, all of the gradient sync (least traffic;
            between micro-batches each rank holds whole gradients); `"all-reduce"`, with replicas, the sum over those;
            `"none"`, nothing (least memory, a reduce-scatter for each micro-batch).
        num_replicas: Copies of the sharded module (hybrid sharding); ranks of one copy are neighbours. `"nodes"`: one
            on each machine.
        tensor_parallel_size: Ranks, neighbours, that share layers and read the same data: those layers that the module
            has given to `device_mesh["tensor_parallel"]` in `configure_model`, with torch's `parallelize_module`.
        cpu_offload: Between computations shards, their gradients and so the optimizer's state are in the memory of the
            host, where the optimizer steps: `True`, or torch's `CPUOffloadPolicy`. For ranks that compute on GPUs.
        find_unused_parameters: A parameter that took no part in the loss, though others of its group did, gets a
            gradient of zeros. Otherwise it is an error.
        activation_checkpointing_policy: Which submodules keep nothing of their forward for backward, and run it again
            there: chosen as with `shard`. Less memory for a third more time.
        policy: torch's own, instead of the one that follows from the run's precision.
        sync_batchnorm: Batch norms take their statistics over all ranks; needs a GPU.
        start: How ranks are started on this machine when nothing else did: see `DDP`.
        backend: Backend of the default process group; by default gloo, with nccl for CUDA tensors.
        timeout_s: Seconds after which a collective that does not complete fails.
    """

    traits = Traits("fsdp", is_distributed=True, syncs_gradients=True, shards_state=True, communicates_in_forward=True)

    def __init__(
        self,
        *,
        shard: Policy = None,
        reshard_after_forward: bool | int | None = None,
        defer: Defer = "reduce",
        num_replicas: int | Literal["nodes"] = 1,
        tensor_parallel_size: int | None = None,
        cpu_offload: bool | OffloadPolicy = False,
        find_unused_parameters: bool = False,
        activation_checkpointing_policy: Policy = None,
        policy: MixedPrecisionPolicy | None = None,
        sync_batchnorm: bool = False,
        start: Literal["script", "spawn", "fork"] = "script",
        backend: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__()
        check_defer(defer, num_replicas)
        self.shard = shard
        self.reshard_after_forward = reshard_after_forward
        self.defer = defer
        self.num_replicas = num_replicas
        self.tensor_parallel_size = tensor_parallel_size
        self.cpu_offload = cpu_offload
        self.find_unused_parameters = find_unused_parameters
        self.activation_checkpointing_policy = activation_checkpointing_policy
        self.policy = policy
        self.sync_batchnorm = sync_batchnorm
        self.start = start
        self.backend = backend
        self.timeout_s = timeout_s
        self.device_mesh: DeviceMesh | None = None
        self._trace: Trace | None = None
        self._prepared: list[ShardedModule] = []  # by number
        self._called: dict[int, ShardedModule] = {}  # since the block began: those with gradients that are not sharded

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Make or adopt the default process group; the override point for everything beside it.

        Ranks: all.
        """
        backend = self.backend or default_backend(self.device_type)
        join_process_group(cluster, stack, backend=backend, timeout_s=self.timeout_s)

    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """Collectives over all ranks, and their mesh.

        Ranks: all.

        Raises:
            ConfigError: The ranks cannot be cut into such rows, or their shards not be offloaded.
        """
        num_replicas = count_replicas(self.num_replicas, cluster)
        check_defer(self.defer, num_replicas)
        if self.cpu_offload is not False:
            from drivetrain.strategies.fsdp_offload import check_offload

            check_offload(self.cpu_offload, backends=dist.get_backend_config())
        collectives = make_group_collectives(device, stack, timeout_s=self.timeout_s)
        collectives.num_alike = self.tensor_parallel_size or 1
        sizes = num_replicas, self.tensor_parallel_size
        self.device_mesh = make_mesh(device.type, *sizes, stack, timeout_s=self.timeout_s)
        prefix = collectives.broadcast(f"drivetrain-fsdp-{next(_opened)}")
        store = dist.distributed_c10d._get_default_store()
        rank, world_size = collectives.rank, collectives.world_size
        self._trace = Trace(store, prefix, rank=rank, world_size=world_size, timeout_s=self.timeout_s)
        return collectives

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """One for which an overflow on one rank is one on all."""
        return sharded_gradients.ShardedGradScaler(device.type)

    def close(self) -> None:
        """Leave the run.

        Ranks: all.
        """
        self.device_mesh = self._trace = None
        self._called.clear()
        self._prepared.clear()
        super().close()

    def use_sync_batchnorm(self) -> None:
        """Convert batch norms when a module is prepared."""
        self.sync_batchnorm = True

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks over which parameters are sharded, in one axis, or in two with replicas."""
        assert self.device_mesh is not None, f"{self.running} is there, and no mesh"
        return sharding_mesh(self.device_mesh)

    @property
    def trace(self) -> Trace:
        """The collectives of micro-batches, as they were seen."""
        assert self._trace is not None, f"{self.running} is there, and no trace"
        return self._trace

    # ---------------------------------------------------------------- model and step

    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring the module to the device, part by part, give all ranks rank 0's parameters, and shard them in place.

        A module that this strategy has prepared before comes back as it is, with these methods.

        torch changes the class of each part; a router to the module is the root, so that the module itself keeps its
        own. Parameters become `DTensor`s: an optimizer that was made before is told of them by `adopt_optimizer`.

        Ranks: all.

        Raises:
            ModelError: The ranks hold different modules, or the module cannot be sharded.
        """
        from drivetrain.strategies.fsdp_offload import make_offload
        from drivetrain.strategies.fsdp_precision import make_policy, policy_of_root
        from drivetrain.strategies.fsdp_shard import ShardRule, check_shardable, shard_in_place

        names = check_methods_exist(module, methods)
        for one in self._prepared:
            if one.original is module:
                return dataclasses.replace(one, methods=names)
        running, precision = self.running, self.running.precision
        if self.sync_batchnorm:
            module = with_sync_batchnorm(module, running.device)
        chosen = choose_parts(module, self.shard)
        assert self.device_mesh is not None, "the mesh is made when the strategy is opened"
        check_shardable(module, chosen, tensor_mesh(self.device_mesh))
        checkpoint_activations(module, self.activation_checkpointing_policy)
        check_same_model(module, running.collectives)
        router = Router(module, precision.context_for(running.device.type))
        policy = self.policy or make_policy(precision)
        offload = make_offload(self.cpu_offload, running.device, is_global_zero=running.collectives.is_global_zero)
        rule = ShardRule(
            self.mesh, running.device, precision.parameter_dtype, self.reshard_after_forward, policy,
            policy_of_root(policy, precision), offload, fills_unused=self.find_unused_parameters,
        )  # fmt: skip
        prepared = shard_in_place(router, chosen, rule, self.trace, number=len(self._prepared), methods=names)
        self._prepared.append(prepared)
        return prepared

    def adopt_optimizer(self, optimizer: Optimizer, prepared: Sequence[Prepared]) -> None:
        """Put the sharded parameters in the place of those that the module had when the optimizer was made.

        Raises:
            OptimizerError: It has made steps already.
        """
        adopt_parameters(optimizer, [sharded(one) for one in prepared])

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method through the router, which gathers what is not a part of its own; parts gather themselves.

        Ranks: all, also without gradients: a rank that has nothing to call joins with `sync_idle`, or `call_idle`.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "FSDP")
        own = sharded(prepared)
        if torch.is_grad_enabled():
            if not own.is_running:
                own.reshard()
            if own.plain:
                self._called[own.number] = own
            return own.wrapped(method, *args, **kwargs)
        with evaluation_block(self.trace, own, method):
            result = own.wrapped(method, *args, **kwargs)
        return result

    def call_idle(self, prepared: Prepared, method: str) -> None:
        """Take part in a call without gradients that the others make.

        Ranks: those without a batch, while the others run theirs.
        """
        own = sharded(prepared)
        with evaluation_block(self.trace, own, method):
            join_idle(self.trace, [own], self._prepared, is_synced=False)

    # ---------------------------------------------------------------- gradients

    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Set torch's flags, which backward reads, for the block: one micro-batch.

        With `defer="none"` gradients are reduced either way.

        Ranks: all, with the same value.
        """
        if not self.trace.is_open:
            self._called.clear()
        reduces = enabled or self.defer != "reduce"
        reduces_over_all = enabled or self.defer == "none"
        modules = [sharded(one) for one in as_list(prepared)]
        return SyncBlock(self.trace, modules, enabled=enabled, reduces=reduces, reduces_over_all=reduces_over_all)

    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Plain backward: torch's hooks gather parts and reduce their gradients meanwhile.

        Ranks: all.

        Raises:
            ModelError: A parameter got no gradient, though others of its group did.
            ConfigError: For some parameters alone: whole ones are in the graph, and not those.
        """
        if inputs is not None:
            self.sync_gradients(inputs)  # says that it cannot
        self.run_backward(loss)
        for one in [*self._called.values()] if prepared is None else [sharded(prepared)]:
            if one.plain and one.is_synced:
                reduce_plain(one, self.trace)

    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Take part in a micro-batch with nothing to add: in all of it, or, after a forward, in what is left of it.

        Ranks: those without a micro-batch, or without a loss, while the others run theirs.

        Args:
            prepared: All modules of the micro-batch.
            has_called: Not read: what was called in the block is known.
        """
        own = [sharded(one) for one in as_list(prepared)]
        if not self.trace.is_open:
            with self.gradient_sync(own, True):
                return self.sync_idle(own)
        if self.running.collectives.world_size > 1:
            join_idle(self.trace, own, self._prepared, is_synced=all(one.is_synced for one in own))
            return None
        for one in own:
            reduce_left(one, self.trace) if one.is_synced else finish_backward(one)
        return None

    def finish_sync(self, prepared: Prepared) -> None:
        """Reduce what was left by parts that had no part in the last micro-batch.

        Ranks: all (one reduce-scatter for each such part).
        """
        reduce_left(sharded(prepared), self.trace)

    def clip_gradients(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        max_norm: float | None = None,
        max_value: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor | None:
        """Clip sharded and other gradients together.

        Ranks: all (for a norm one all-reduce for each mesh axis that shards parameters).
        """
        check_clip(max_norm, max_value)
        gradients = sharded_gradients.gradients_of(parameters)
        if max_value is not None:
            sharded_gradients.clip_value(gradients, max_value)
            return None
        assert max_norm is not None
        total = sharded_gradients.total_norm(gradients, norm_type, self.device)
        sharded_gradients.clip_norm(gradients, max_norm, total, error_if_nonfinite=error_if_nonfinite)
        return total

    # ---------------------------------------------------------------- data and state

    def data_shard(self) -> DataShard:
        """Each rank reads its own share; those that share layers the same one."""
        size = self.collectives.num_alike
        return DataShard(self.collectives.rank // size, self.collectives.world_size // size)

    def sync_buffers(self, prepared: Prepared) -> None:
        """Broadcast rank 0's buffers.

        Ranks: all (one broadcast for each buffer).
        """
        for buffer in prepared.original.buffers():
            dist.broadcast(buffer, group_src=0)

    def save_state(self, state: Mapping[str, Any], files: StateFiles) -> None:
        """Each rank saves its shards; rank 0 all that is not sharded.

        Ranks: all.
        """
        from drivetrain.strategies.sharded_state import add_shards

        add_shards(state, files, is_global_zero=self.collectives.is_global_zero)

    def load_state(self, state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
        """Each rank reads its own shards, from a checkpoint of any strategy and any number of ranks.

        Ranks: all.
        """
        from drivetrain.strategies.sharded_state import read_shards

        return read_shards(state, directory, strict=strict)

    def full_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with whole tensors, on every rank.

        Ranks: all (one all-gather for each sharded tensor).
        """
        from drivetrain.strategies.sharded_state import whole_state

        return whole_state(state)
