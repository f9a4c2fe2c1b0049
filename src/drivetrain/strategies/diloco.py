"""DiLoCo: each rank steps on its own gradients; an outer optimizer steps on how far they came, now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.data.data_shard import DataShard
from drivetrain.strategies.flat_message import average_in_place, broadcast_in_place
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

OuterOptimizer = Callable[[Sequence[nn.Parameter]], Optimizer]


class DiLoCo(Strategy):
    """Each rank steps on its own gradients; every `sync_every` steps an outer optimizer steps on their mean way.

    All ranks hold the anchor, the parameters of the last sync. Anchor minus the mean over ranks of their parameters is
    given to the outer optimizer as the anchor's gradient; parameters are set to the anchor that it comes to.

    **Not exact**: between two syncs the ranks are different models, and the result depends on their number. Each rank
    counts the same in the mean, whatever its weights. Inner optimizer states are never synced. Buffers become those of
    rank 0 at each sync. Method and defaults: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training
    of Language Models", arXiv:2311.08105.

    Args:
        sync_every: Optimizer steps from one sync to the next; the paper has 500.
        outer_lr: Of the outer SGD.
        outer_momentum: Of the outer SGD.
        nesterov: The outer momentum looks ahead.
        outer_optimizer: Makes another outer optimizer from the anchor's parameters; the three above are not read then.
        start: How ranks are started on this machine when nothing else did, as for `DDP`.
        backend: Backend of the default process group; by default gloo, with nccl for CUDA tensors.
        timeout_s: Seconds after which a collective that does not complete fails.
    """

    traits = Traits("diloco", is_distributed=True, syncs_gradients=False, shards_state=False)

    def __init__(
        self,
        sync_every: int = 50,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        outer_optimizer: OuterOptimizer | None = None,
        start: Literal["script", "spawn", "fork"] = "script",
        backend: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__()
        check_sync_every(sync_every)
        if not (outer_lr > 0 and 0 <= outer_momentum < 1):
            raise ConfigError(
                f"outer_lr={outer_lr!r} and outer_momentum={outer_momentum!r} give no outer SGD.",
                code="outer-optimizer",
                do="Use outer_lr above 0 and outer_momentum from 0 to below 1, or give an outer_optimizer.",
            )
        self.sync_every = sync_every
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        self.nesterov = nesterov
        self.outer_optimizer = outer_optimizer
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
        kept = AnchoredRound(module, sync_every=self.sync_every, make_outer=self.outer_optimizer or self._make_sgd)
        return Prepared(module, router, names, tuple(module.parameters()), kept)

    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run the method on this rank's own parameters; the router adds the precision's context.

        Ranks: any.
        """
        if method not in prepared.methods:
            check_method(prepared, method, "DiLoCo")
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
        """Count a step; after `sync_every` of them make the outer step, and broadcast rank 0's buffers.

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
        """Leave all ranks with the mean of their parameters; no outer step is made.

        What is saved afterwards is still each rank's own.

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

    def _make_sgd(self, anchor: Sequence[nn.Parameter]) -> Optimizer:
        nesterov = self.nesterov and self.outer_momentum > 0  # torch refuses the one without the other
        return torch.optim.SGD(anchor, lr=self.outer_lr, momentum=self.outer_momentum, nesterov=nesterov)


class AnchoredRound(Round):
    """A round that ends in a step of the outer optimizer.

    Attributes:
        anchor: The trained parameters as of the last sync, the same on all ranks; at least float32.
        outer: Steps the anchor; `None` where nothing is trained.
    """

    def __init__(self, module: nn.Module, *, sync_every: int, make_outer: OuterOptimizer) -> None:
        super().__init__(module, sync_every=sync_every)
        self.anchor = [
            nn.Parameter(p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)) for p in self.trained
        ]
        self.outer = make_outer(self.anchor) if self.anchor else None

    def sync(self) -> None:
        """Step the anchor by the mean way of the ranks, and set the parameters to it.

        Ranks: all (one all-reduce for each dtype).
        """
        if self.outer is None:
            return
        for anchor, parameter in zip(self.anchor, self.trained, strict=True):
            # One that was frozen meanwhile is left where it is, whatever the outer momentum says.
            anchor.grad = anchor.detach() - parameter.detach() if parameter.requires_grad else None
        average_in_place(anchor.grad for anchor in self.anchor if anchor.grad is not None)
        self.outer.step()
        self.outer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(self.trained, list(self.anchor))

    def restart(self) -> None:
        """Begin with the parameters as they are now, and an outer optimizer that knows nothing.

        The outer optimizer keeps its settings.
        """
        super().restart()
        with torch.no_grad():
            torch._foreach_copy_(list(self.anchor), self.trained)
        if self.outer is not None:
            self.outer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """What is equal on all ranks."""
        outer = self.outer.state_dict() if self.outer is not None else {}
        return {**super().state_dict(), "anchor": [anchor.detach() for anchor in self.anchor], "outer": outer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of a round."""
        super().load_state_dict(state)
        with torch.no_grad():
            torch._foreach_copy_(list(self.anchor), list(state["anchor"]))
        if self.outer is not None:
            self.outer.load_state_dict(state["outer"])
