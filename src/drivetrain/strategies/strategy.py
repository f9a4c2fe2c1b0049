"""The contract of a strategy: everything that depends on where and how a step runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, LaunchError, NotOpenError
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.comm.collectives import Collectives
from drivetrain.data.data_shard import DataShard
from drivetrain.precision.precision import Precision, make_precision
from drivetrain.strategies.clip import check_clip, clip_replicas
from drivetrain.strategies.loss_scale import LossScale
from drivetrain.strategies.optimizer_calls import step_once
from drivetrain.strategies.prepared import Prepared, Running, Traits


class Strategy(ABC):
    """Owns process groups, wrapping, the way a step is called, gradient sync, collectives and state.

    A concrete strategy says itself, in its own file, how a model is wrapped (`prepare`), how a step is called through
    that wrapper (`call`), how its sync is deferred (`gradient_sync`) and how state is saved. A user's subclass
    usually overrides `init_process_groups` alone: it works the same under every launcher.

    Order of calls in a rank: open (init_process_groups inside), prepare, then for each micro-batch
    gradient_sync(call, backward), then unscale, clip_gradients, step, end_step; at the end close.
    """

    traits: ClassVar[Traits]
    start: Literal["script", "spawn", "fork"] = "script"
    device_mesh: Any = None  # torch's `DeviceMesh` of the ranks of a run, where the strategy has one

    def __init__(self) -> None:
        self._running: Running | None = None
        self._stack = ExitStack()
        self.loss_scale: LossScale | None = None  # set by `open`, where the precision needs it
        self.own_backward: Callable[[Tensor], Any] | None = None  # a module's, instead of `loss.backward()`
        self.device_type = "cpu"  # of the run; set by `open` before any process group is made

    # ---------------------------------------------------------------- life

    def open(
        self,
        cluster: ClusterInfo,
        device: torch.device,
        *,
        precision: Precision | str | None = None,
        devices: Sequence[torch.device] = (),
    ) -> Running:
        """Join the other ranks. A second call is refused.

        Ranks: all.

        Args:
            cluster: This rank among the others.
            device: Where this rank computes.
            precision: The number formats of the run.
            devices: All devices that this rank drives; by default the one.
        """
        if self._running is not None:
            raise LaunchError(
                f"This {type(self).__name__} is open already.",
                code="launched-twice",
                do="Open a strategy once in a process, and close it before it is opened again.",
            )
        precision = make_precision(precision)
        self.device_type = device.type
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with ExitStack() as stack:
            self.init_process_groups(cluster, stack)
            collectives = self.make_collectives(cluster, device, stack)
            self.loss_scale = LossScale(device, self.make_scaler(device)) if precision.is_loss_scaled else None
            self._stack = stack.pop_all()
        self._running = Running(cluster, device, tuple(devices) or (device,), precision, collectives)
        return self._running

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Make the process groups of the run: the one override point.

        Called once in each rank, under every launcher, before anything else communicates. A subclass may make extra
        groups, pass its own store, timeout or backend, or start `torch.distributed.rpc`; what has to be ended is
        registered on `stack` and unwound in reverse order when the strategy closes.

        Ranks: all.
        """

    @abstractmethod
    def make_collectives(self, cluster: ClusterInfo, device: torch.device, stack: ExitStack) -> Collectives:
        """The collectives of the run, made after the process groups.

        Ranks: all.
        """

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """The loss scaling of the run, where its precision needs one."""
        return torch.amp.GradScaler(device.type)

    def close(self) -> None:
        """Leave the run: what was registered in `open` is unwound in reverse order. Harmless when not open.

        Ranks: all.
        """
        stack, self._stack = self._stack, ExitStack()
        self._running = self.loss_scale = None
        stack.close()

    @property
    def running(self) -> Running:
        """What exists only in a running rank.

        Raises:
            NotOpenError: The strategy is not open.
        """
        if self._running is None:
            raise NotOpenError(
                f"{type(self).__name__} is not open: device, ranks and collectives exist only in a running rank.",
                code="not-open",
                do="Call fabric.launch() first, or read them inside a Trainer run.",
            )
        return self._running

    @property
    def is_open(self) -> bool:
        """`open` was called, and `close` was not."""
        return self._running is not None

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.running.device

    @property
    def cluster(self) -> ClusterInfo:
        """This rank among the others."""
        return self.running.cluster

    @property
    def collectives(self) -> Collectives:
        """How this rank talks to the others."""
        return self.running.collectives

    def __getstate__(self) -> dict[str, Any]:
        if self.is_open:
            raise LaunchError(
                f"An open {type(self).__name__} cannot be sent to another process.",
                code="launched-twice",
                do="Launch before the first run in this process, or make a new strategy.",
            )
        state = dict(self.__dict__)
        del state["_stack"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stack=ExitStack())

    def use_sync_batchnorm(self) -> None:
        """Take batch-norm statistics over all ranks; called before `open`. Nothing to do on one rank."""

    # ---------------------------------------------------------------- model and step

    @abstractmethod
    def prepare(self, module: nn.Module, *, methods: Iterable[str] = ("forward",)) -> Prepared:
        """Bring a module to the device and wrap it.

        Ranks: all.

        Args:
            module: The user's module; it is changed in place (device, dtype).
            methods: The methods that will be called through the wrapper.

        Raises:
            ModelError: The ranks hold different modules.
        """

    def adopt_optimizer(self, optimizer: Optimizer, prepared: Sequence[Prepared]) -> None:
        """Let an optimizer that was made before its modules were prepared hold the parameters that they have now."""

    @abstractmethod
    def call(self, prepared: Prepared, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the user's module through the wrapper's forward.

        Without gradients (`torch.no_grad`, `torch.inference_mode`) a strategy may run it on the module itself.

        Ranks: all while gradients are on; any otherwise, unless parameters are sharded.

        Raises:
            MethodNotPreparedError: The method was not named to `prepare`.
        """

    def call_idle(self, prepared: Prepared, method: str) -> None:
        """Take part in a call without gradients that other ranks make, where such calls communicate.

        Ranks: those without a batch, while the others run theirs.
        """

    # ---------------------------------------------------------------- gradients

    @abstractmethod
    def gradient_sync(
        self, prepared: Prepared | Sequence[Prepared], enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Switch gradient sync on or off for a block around forward *and* backward.

        The state found is restored at the end, also on an exception and when nested.

        Ranks: all, with the same value.
        """

    @abstractmethod
    def backward(
        self, loss: Tensor, prepared: Prepared | None = None, *, inputs: Sequence[nn.Parameter] | None = None
    ) -> None:
        """Run backward through what owns the sync. The loss is scaled first where the precision needs it.

        Ranks: all while sync is on.

        Args:
            loss: 0-dim.
            prepared: The module that made it, to check that its sync is complete.
            inputs: Give gradients to these parameters alone.
        """

    @abstractmethod
    def sync_idle(self, prepared: Prepared | Sequence[Prepared], *, has_called: bool = False) -> None:
        """Take part in one gradient sync with nothing to add: for a rank without data, or without a loss.

        What earlier micro-batches of the window left in the gradients is sent. Where `traits.communicates_in_forward`,
        a rank takes part in each micro-batch that it does not run, or runs without a loss, inside of that one's
        `gradient_sync`.

        Ranks: those without a last micro-batch, while the others run theirs.

        Args:
            prepared: The modules of the micro-batch.
            has_called: This rank has called the module in this window, with gradients on.
        """

    def sync_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average now what the gradients of some parameters hold: for backwards that ran with sync off.

        A parameter without a gradient on any rank stays without one.

        Ranks: all, with the same parameters.

        Raises:
            ConfigError: The strategy can sync only in backward.
        """
        if self.traits.syncs_gradients:
            raise ConfigError(
                f"{type(self).__name__} syncs gradients only in backward.",
                code="sync-afterwards",
                do="Use automatic optimisation or fabric.windows, or another strategy.",
            )

    def finish_sync(self, prepared: Prepared) -> None:
        """At the end of a window: sync what a module has left unsynced, because its last micro-batch did not use it.

        Ranks: all.

        Raises:
            ModelError: A parameter got no gradient, so that the sync is not complete.
        """

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale, where the precision has one. For `backward` of a strategy."""
        return loss if self.loss_scale is None else self.loss_scale.scaled(loss)

    def run_backward(self, loss: Tensor, inputs: Sequence[nn.Parameter] | None = None) -> None:
        """Backward of the scaled loss, by the module's own method if it has one. For `backward` of a strategy."""
        if self.own_backward is None or inputs is not None:
            self.scaled(loss).backward(inputs=inputs)
        else:
            self.own_backward(self.scaled(loss))

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Torch's scaler of losses, where the precision has one."""
        return self.loss_scale.scaler if self.loss_scale is not None else None

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo the loss scaling of an optimizer's gradients, once before clipping and step."""
        if self.loss_scale is not None:
            self.loss_scale.scaler.unscale_(optimizer)

    def clip_gradients(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        max_norm: float | None = None,
        max_value: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor | None:
        """Scale gradients in place so that their global norm is at most `max_norm`, or clamp them to `max_value`.

        After unscaling and gradient sync.

        Ranks: all where parameters are sharded; any otherwise.

        Returns:
            The norm before scaling, 0-dim, equal on all ranks; `None` for `max_value`.
        """
        check_clip(max_norm, max_value)
        return clip_replicas(list(parameters), max_norm, max_value, norm_type, error_if_nonfinite=error_if_nonfinite)

    def step(self, optimizers: Sequence[Optimizer], closures: Sequence[Callable[[], Any] | None] | None = None) -> bool:
        """Make one optimizer step with each optimizer.

        Returns:
            False if the step was skipped because scaled gradients overflowed (on all ranks alike, unless they
            step apart).
        """
        if self.loss_scale is not None:
            return self.loss_scale.step(optimizers)
        for index, optimizer in enumerate(optimizers):
            step_once(optimizer, closures[index] if closures is not None else None)
        return True

    def end_step(self, prepared: Prepared | Sequence[Prepared]) -> None:
        """The end of an optimizer step, also where this rank, or all of them, did not make it.

        For a strategy that brings parameters together after some steps.

        Ranks: all, once for each window.
        """

    # ---------------------------------------------------------------- one model

    @contextmanager
    def agreed_model(self, prepared: Prepared) -> Iterator[None]:
        """The model on which all ranks agree, for a block: what is evaluated.

        Ranks: all.
        """
        self.sync_buffers(prepared)
        yield

    def end_training(self, prepared: Prepared) -> None:
        """After the last step: leave the agreed model on all ranks. Nothing to do where they have one all along.

        Ranks: all.
        """

    # ---------------------------------------------------------------- data and state

    @abstractmethod
    def data_shard(self) -> DataShard:
        """Which share of the data this rank reads."""

    @abstractmethod
    def sync_buffers(self, prepared: Prepared) -> None:
        """Give all ranks the buffers that will be saved, before evaluation.

        Ranks: all.
        """

    @abstractmethod
    def save_state(self, state: Mapping[str, Any], files: StateFiles) -> None:
        """Give this rank's share of a state, as it is now, to `files`: to be written at once, or later from a copy.

        Ranks: all.

        Args:
            state: Name to prepared module, optimizer, anything with `state_dict`, or plain data.
            files: Of this save; other ranks write files of other names.
        """

    @abstractmethod
    def load_state(self, state: Mapping[str, Any], directory: Path, *, strict: bool = True) -> dict[str, Any]:
        """Put a saved state back into modules, optimizers and stateful objects.

        Ranks: all.

        Args:
            state: As given to `save_state`.
            directory: A checkpoint that was verified.
            strict: Missing and unexpected names of a module are an error.

        Returns:
            The plain data of the checkpoint, and what it holds beyond `state`.
        """

    @abstractmethod
    def full_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The whole state as tensors on their device and plain data.

        Ranks: all.
        """
