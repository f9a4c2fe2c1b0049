"""Distributed data parallel: a copy of the model on each rank, gradients averaged once per window."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drivetrain.base.errors import ConfigError, ModelError
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies.average_gradients import average_gradients
from drivetrain.strategies.comm_hooks import Hook, add_hook_states, read_hook_states, register_hook
from drivetrain.strategies.model_check import check_same_model
from drivetrain.strategies.prepared import Prepared, Traits, as_list, check_method, check_methods_exist
from drivetrain.strategies.process_group import (
    DEFAULT_TIMEOUT_S,
    default_backend,
    join_process_group,
    make_group_collectives,
)
from drivetrain.strategies.replicated_state import add_replica, read_replica, replica_state
from drivetrain.strategies.router import Router
from drivetrain.strategies.strategy import Strategy


class DDP(Strategy):
    """A copy of the model on each rank; gradients are averaged over ranks by `DistributedDataParallel`.

    Defaults are torch's own.

    Args:
        start: How ranks are started on this machine when nothing else did: `"script"` runs the program again in each
            rank; `"spawn"` and `"fork"` run the function alone and bring its results back.
        find_unused_parameters: Look for parameters that took no part in a forward; costs time at every step.
        static_graph: The same parameters are used in every step.
        gradient_as_bucket_view: Gradients share memory with the buckets that are sent.
        broadcast_buffers: Rank 0's buffers are given to all at the start of each window.
        bucket_cap_mb: Size of a bucket; by default torch's.
        comm_hook: `"bf16"`, `"fp16"`, `"powersgd"` or a function; not exact.
        comm_state: The state of a hook of your own, or a `PowerSGD` with its settings.
        sync_batchnorm: Batch norms take their statistics over all ranks; needs a GPU.
        backend: Backend of the default process group; by default gloo, with nccl for CUDA tensors.
        timeout_s: Seconds after which a collective that does not complete fails.
        process_group: The group over which gradients are averaged; by default all ranks.
    """

    traits = Traits("ddp", is_distributed=True, syncs_gradients=True, shards_state=False)

    def __init__(
        self,
        *,
        start: Literal["script", "spawn", "fork"] = "script",
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
        comm_hook: str | Hook | None = None,
        comm_state: Any = None,
        sync_batchnorm: bool = False,
        backend: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.start = start
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.broadcast_buffers = broadcast_buffers
        self.bucket_cap_mb = bucket_cap_mb
        self.comm_hook = comm_hook
        self.comm_state = comm_state
        self.sync_batchnorm = sync_batchnorm
        self.backend = backend
        self.timeout_s = timeout_s
        self.process_group = process_group

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Make or adopt the default process group; the override point for everything beside it.

        Ranks: all.
        """
        backend = self.backend or default_backend(self.device_type)
        join_process_group(cluster, stack, backend=backend, timeout_s=self.timeout_s)

    def use_sync_batchnorm(self) -> None:
        """Convert batch norms when a module is prepared."""
        self.sync_batchnorm = True

    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """Collectives over all ranks, with a gloo group of their own for small messages.

        Ranks: all.
        """
        return make_group_collectives(device, stack, timeout_s=self.timeout_s)

    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring the module to the device, check that all ranks hold the same, and wrap a router to it.

        Ranks: all.

        Raises:
            ModelError: The ranks hold different modules.
        """
        names = check_methods_exist(module, methods)
        running = self.running
        module.to(device=running.device, dtype=running.precision.parameter_dtype)
        if self.sync_batchnorm:
            module = self._with_sync_batchnorm(module)
        check_same_model(module, running.collectives)
        router = _DirectRouter(module, running.precision.context_for(running.device.type))
        parameters = tuple(module.parameters())
        frozen = tuple(parameter for parameter in parameters if not parameter.requires_grad)
        if len(frozen) == len(parameters):
            return Prepared(module, router, names, parameters, frozen=frozen)
        ddp = DistributedDataParallel(
            router,
            device_ids=[running.device.index] if running.device.type == "cuda" else None,
            find_unused_parameters=self.find_unused_parameters,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            forward_sync_buffers=self.broadcast_buffers,
            bucket_cap_mb=self.bucket_cap_mb,
            process_group=self.process_group,
        )
        kept = register_hook(ddp, self.comm_hook, self.comm_state) if self.comm_hook is not None else None
        return Prepared(module, ddp, names, parameters, kept, frozen)

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method through DDP's forward; without gradients, through the router alone.

        Ranks: all while gradients are on (buffers are broadcast, and the sync is set up in forward); any otherwise.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "DDP")
        wrapped = prepared.wrapped
        if torch.is_grad_enabled():
            if self.static_graph:
                _make_graph_static(wrapped)
            # Torch's wrapper has no hooks that `nn.Module.__call__` would have to look for.
            run: Callable[..., Any] = wrapped.forward if type(wrapped) is DistributedDataParallel else wrapped
            return run(method, *args, **kwargs)
        router = wrapped.module if isinstance(wrapped, DistributedDataParallel) else wrapped
        return router(method, *args, **kwargs)

    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Set DDP's flag, which forward reads, for the block.

        Ranks: all, with the same value.
        """
        for one in as_list(prepared):
            ddp = one.wrapped
            if isinstance(ddp, DistributedDataParallel) and ddp.require_backward_grad_sync != enabled:
                wrapped = [p.wrapped for p in as_list(prepared) if isinstance(p.wrapped, DistributedDataParallel)]
                return _SyncFlag(wrapped, enabled)
        return _AS_IT_IS

    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Plain backward: DDP's hooks on the parameters reduce the gradients meanwhile.

        Ranks: all while sync is on.

        Raises:
            ModelError: A parameter got no gradient, so that the sync is not complete.
        """
        self.run_backward(loss, inputs)
        wrapped = prepared.wrapped if prepared is not None else None
        if isinstance(wrapped, DistributedDataParallel) and wrapped.require_backward_grad_sync:
            _check_complete(wrapped, self.running.collectives)

    def sync_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average gradients in buckets, without DDP's reducer: for backwards that ran with sync off.

        Ranks: all, with the same parameters (one all-reduce for each bucket, and one small message).
        """
        average_gradients(parameters, self.running.collectives, group=self.process_group)

    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Send zeros, together with what earlier micro-batches of the window left.

        Ranks: those without a last micro-batch, while the others run theirs.
        """
        for one in as_list(prepared):
            self._sync_idle(one, has_called=has_called)

    def _sync_idle(self, prepared: Prepared, *, has_called: bool) -> None:
        ddp = prepared.wrapped
        if not isinstance(ddp, DistributedDataParallel):
            return
        if self.static_graph:
            _make_graph_static(ddp, is_synced=True)
        found = ddp.forward_sync_buffers
        # The others broadcast buffers in the first forward of the window: match it once, not twice.
        ddp.forward_sync_buffers = found and not has_called
        try:
            with self.gradient_sync(prepared, True):
                ddp(None).backward()
        finally:
            ddp.forward_sync_buffers = found

    def finish_sync(self, prepared: Prepared) -> None:
        """Sync once more if the last forward with gradients was one without sync; else check that the sync is complete.

        Ranks: all (nothing is sent unless a part of the ranks' modules sat out the last micro-batch).

        Raises:
            ModelError: A parameter got no gradient, or was unfrozen, so that the sync is not complete.
        """
        ddp = prepared.wrapped
        if prepared.frozen and any(one.requires_grad for one in prepared.frozen):
            raise _unfrozen(prepared, self.running.collectives)
        if not isinstance(ddp, DistributedDataParallel):
            return
        if not ddp.require_forward_param_sync:  # torch notes there whether the last forward prepared a sync
            self.sync_idle(prepared, has_called=True)
        _check_complete(ddp, self.running.collectives)

    def data_shard(self) -> DataShard:
        """Each rank reads its own share."""
        return DataShard(self.collectives.rank, self.collectives.world_size)

    def sync_buffers(self, prepared: Prepared) -> None:
        """Broadcast rank 0's buffers.

        Ranks: all (one broadcast for each buffer).
        """
        for buffer in prepared.original.buffers():
            dist.broadcast(buffer, group_src=0, group=self.process_group)

    def save_state(self, state: Mapping[str, Any], files: StateFiles) -> None:
        """One file of rank 0; with PowerSGD also one of each rank's own.

        Ranks: all.
        """
        if self.collectives.is_global_zero:
            add_replica(state, files)
        add_hook_states(state, files, rank=self.collectives.rank)

    def load_state(self, state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
        """Every rank reads the one file; with PowerSGD also its own.

        Ranks: all.
        """
        read_hook_states(state, directory, collectives=self.collectives)
        return read_replica(state, directory, strict=strict)

    def full_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state as it is: every rank holds all of it.

        Ranks: all.
        """
        return replica_state(state)

    def _with_sync_batchnorm(self, module: nn.Module) -> nn.Module:
        if self.device.type != "cuda":
            raise ConfigError(
                f"sync_batchnorm=True on {self.device.type}: torch has SyncBatchNorm for CUDA only.",
                code="sync-batchnorm",
                do="Switch it off, or use GPUs.",
            )
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted


class _DirectRouter(Router):
    """Called by DDP, without the search for hooks that `nn.Module.__call__` begins with: it has none."""

    __call__ = Router.forward


_AS_IT_IS = nullcontext()


class _SyncFlag(AbstractContextManager[None]):
    """`DistributedDataParallel.no_sync` for both values and several modules; the flags found are restored."""

    def __init__(self, wrapped: Sequence[DistributedDataParallel], enabled: bool) -> None:
        self.wrapped = wrapped
        self.enabled = enabled
        self.found: list[bool] = []

    def __enter__(self) -> None:
        self.found = [ddp.require_backward_grad_sync for ddp in self.wrapped]
        for ddp in self.wrapped:
            ddp.require_backward_grad_sync = self.enabled

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ddp, found in zip(self.wrapped, self.found, strict=True):
            ddp.require_backward_grad_sync = found


def _make_graph_static(ddp: nn.Module, *, is_synced: bool = False) -> None:
    """Say that the graph is static, in the first forward whose gradients are synced.

    Said in the constructor, torch (2.13) fails in a first backward without sync, or counts the micro-batches of the
    window as uses of a parameter, so that its gradient is never sent (pytorch#187732, open).
    """
    if not isinstance(ddp, DistributedDataParallel) or ddp.static_graph:
        return
    if is_synced or ddp.require_backward_grad_sync:
        ddp._set_static_graph()


def _check_complete(ddp: DistributedDataParallel, collectives: Collectives) -> None:
    try:
        ddp.reducer._check_reducer_finalized()
    except RuntimeError as cause:
        names = [name for name, parameter in ddp.module.module.named_parameters() if parameter.requires_grad]
        indices = re.search(r"did not receive grad for rank \d+:((?: \d+)+)", str(cause))
        unused = [names[int(i)] for i in indices.group(1).split()] if indices else []
        raise ModelError(
            f"These parameters took no part in the loss, so their gradients were not synced: {', '.join(unused)}.",
            code="unused-parameters",
            do="Use them, freeze them with requires_grad_(False), or pass DDP(find_unused_parameters=True).",
            rank=(collectives.rank, collectives.world_size),
        ) from cause


def _unfrozen(prepared: Prepared, collectives: Collectives) -> ModelError:
    late = {id(one) for one in prepared.frozen or () if one.requires_grad}
    names = [name for name, one in prepared.original.named_parameters() if id(one) in late]
    return ModelError(
        f"These parameters were unfrozen after the module was wrapped, so DDP does not sync their gradients: "
        f"{', '.join(names[:5])}{' and others' if len(names) > 5 else ''}.",
        code="unfrozen",
        do="Unfreeze them with a BaseFinetuning, which wraps the module anew, or before it is prepared.",
        rank=(collectives.rank, collectives.world_size),
    )
