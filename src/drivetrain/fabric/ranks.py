"""Starting and joining the ranks of a run, and talking to them."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from drivetrain.base.errors import LaunchError, NotOpenError
from drivetrain.base.rng import capture_rng, restore_rng, seed_everything
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.comm.collectives import Collectives, ReduceOp
from drivetrain.comm.gradient_gather import gather_with_gradients
from drivetrain.device.accelerator import ACCELERATORS, Accelerator
from drivetrain.fabric.plan import Plan, check_restarts
from drivetrain.launch.failure_file import FAILURE_FOLDER
from drivetrain.launch.heart import begin_heart
from drivetrain.launch.launch_function import launch_function
from drivetrain.launch.launch_script import DEFAULT_GRACE_S, launch_script
from drivetrain.launch.lost_store import note_lost_store
from drivetrain.launch.patience import DEFAULT_PATIENCE
from drivetrain.launch.program import current_program
from drivetrain.launch.stop_signals import StopSignals
from drivetrain.launch.store_watch import begin_store_watch, end_store_watch
from drivetrain.loggers.logger import Logger
from drivetrain.strategies.parameter_check import check_same_values
from drivetrain.strategies.strategy import Strategy


class Ranks:
    """The ranks of a run: launch, close, who am I, and what is said between them.

    Args:
        plan: What will run.
        loggers: Opened with the ranks.
        grace_s: What ranks get between a signal to the process that launched them and SIGKILL.
    """

    callbacks: list[Any]
    patience = DEFAULT_PATIENCE
    failure_folder = Path(FAILURE_FOLDER)

    def __init__(self, plan: Plan, loggers: list[Logger], grace_s: float = DEFAULT_GRACE_S) -> None:
        self.plan = plan
        self.grace_s = grace_s
        self._loggers = loggers
        self._has_launched = False  # by `launch`, which is called once
        self._has_joined = False  # an open strategy; it may have been opened by another
        self.stop_signals = StopSignals()

    # ---------------------------------------------------------------- launch and life

    def launch(
        self,
        function: Callable[..., Any] | None = None,
        *args: Any,
        max_restarts: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start the ranks, or join them where a launcher such as torchrun has started them.

        With a function: each rank runs `function(fabric, *args, **kwargs)`; rank 0's result is returned. It may be
        defined anywhere, also in a notebook. Without one: the program is run again in each rank, and the process that
        called `launch()` ends with them (`SystemExit`).

        Ranks: all.

        Args:
            function: What each rank runs.
            args: For it.
            max_restarts: How often all ranks are started again after one has failed; they begin from the start, and
                load what they have saved. By default what the constructor was given.
            kwargs: For the function.

        Raises:
            LaunchError: Ranks cannot be started, or were started already.
            RankFailedError: A rank failed, and they may not be started again; it holds the rank's traceback.
        """
        if max_restarts is not None:
            self.plan = replace(self.plan, max_restarts=check_restarts(max_restarts))
        if self._has_launched:
            raise LaunchError(
                "launch() was called twice.", code="launched-twice", do="Launch once, before anything else."
            )
        self._has_launched = True
        if function is None and self.plan.needs_launch(current_cluster()):
            if self.strategy.start != "script":
                raise LaunchError(
                    f"strategy with start={self.strategy.start!r} starts functions, and launch() was given none.",
                    code="no-function",
                    do="Write fabric.launch(main), or use strategy='ddp'.",
                )
            launch_script(self.plan.num_local_ranks, **self._watched())
        return self._run(function or _nothing, args, kwargs)

    def start(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(self, *args)` in each rank, started in the strategy's own way; rank 0's result is returned.

        Ranks: all.
        """
        if self.strategy.start == "script" and self.plan.needs_launch(current_cluster()) and current_program():
            launch_script(self.plan.num_local_ranks, **self._watched())
        return self._run(function, args, {})

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cluster = current_cluster()
        if not self.plan.needs_launch(cluster):
            self._open(cluster)
            try:
                return function(self, *args, **kwargs)
            except Exception as error:
                note_lost_store(error, cluster)
                raise
        start: Literal["spawn", "fork"] = "fork" if self.strategy.start == "fork" else "spawn"
        given = (self, function, args, kwargs, capture_rng())
        return launch_function(
            _run_in_rank, given, num_ranks=self.plan.num_local_ranks, start=start, **self._watched()
        )[0]

    def _watched(self) -> dict[str, Any]:
        return {
            "max_restarts": self.plan.max_restarts, "grace_s": self.grace_s, "patience": self.patience,
            "failure_folder": self.failure_folder,
        }  # fmt: skip

    def _open(self, cluster: ClusterInfo) -> None:
        is_open = self.strategy.is_open
        if is_open and self._has_joined:
            return
        begin_heart(cluster, self.patience)
        self.plan.open(cluster)
        self._has_joined = True
        begin_store_watch(cluster, self.patience, self.failure_folder)
        if self.plan.max_restarts and cluster.launched_by not in ("none", "drivetrain") and cluster.rank == 0:
            warnings.warn(
                f"max_restarts={self.plan.max_restarts} is of ranks that drivetrain starts; these were started by "
                f"{cluster.launched_by}, which has a setting of its own (torchrun --max-restarts).",
                stacklevel=3,
            )
        for logger in self._loggers:
            logger.open(is_global_zero=self.is_global_zero)
        if self.strategy.traits.is_distributed and not is_open:
            atexit.register(self.close)

    def close(self) -> None:
        """Leave the run: wrappers are dropped, then the process groups that drivetrain made are destroyed.

        Ranks: all.
        """
        end_store_watch()
        self.strategy.close()
        self.stop_signals.close()
        self._has_joined = False
        atexit.unregister(self.close)

    @property
    def _running(self) -> Strategy:
        strategy = self.plan.strategy
        if not (self._has_joined and strategy.is_open):
            cluster = current_cluster()
            if not strategy.is_open and self.plan.needs_launch(cluster):
                raise NotOpenError(
                    f"{self.plan.num_ranks} ranks were asked for and none was started.",
                    code="not-launched",
                    do="Call fabric.launch() first.",
                )
            self._open(cluster)
        return strategy

    @property
    def strategy(self) -> Strategy:
        """Owns everything distributed."""
        return self.plan.strategy

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._running.device

    @property
    def accelerator(self) -> Accelerator:
        """The kind of device."""
        return ACCELERATORS[self.plan.request.kind]

    @property
    def collectives(self) -> Collectives:
        """How this rank talks to the others."""
        return self._running.collectives

    @property
    def global_rank(self) -> int:
        """This rank among all."""
        return self._running.cluster.rank

    @property
    def local_rank(self) -> int:
        """This rank among those of this machine."""
        return self._running.cluster.local_rank

    @property
    def node_rank(self) -> int:
        """This machine among all."""
        return self._running.cluster.node_rank

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self._running.cluster.world_size

    @property
    def is_global_zero(self) -> bool:
        """This is rank 0."""
        return self.global_rank == 0

    @property
    def num_restarts(self) -> int:
        """How often all ranks of this run were started again after a failure, until now."""
        return self._running.cluster.restart_count

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self._loggers[0] if self._loggers else None

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._loggers

    # ---------------------------------------------------------------- told to end

    @property
    def stop_requested(self) -> bool:
        """This rank has had SIGTERM, SIGINT or SIGUSR1 since this, or `should_stop`, was first asked for.

        From the first time on the signals are noted instead of ending the process; `close` puts their handlers back.
        """
        self.stop_signals.listen()
        return self.stop_signals.is_noted()

    def should_stop(self, window: Any = None) -> bool:
        """Whether any rank was told by a signal to end: save, and leave the loop. Equal on all ranks.

        Ranks: all (one small message, none on one rank; with a window none at all).

        Args:
            window: Of `windows`, after its step: its own message has said it.
        """
        wants = self.stop_requested
        is_agreed = bool(window.is_end_agreed) if window is not None else self.collectives.agree([float(wants)])[0] > 0
        self.stop_signals.has_ended = is_agreed
        return is_agreed

    # ---------------------------------------------------------------- talk

    def barrier(self) -> None:
        """Wait for every rank.

        Ranks: all.
        """
        self.collectives.barrier()

    def all_reduce(self, data: Any, reduce_op: ReduceOp = "mean") -> Any:
        """Reduce tensors and numbers over ranks; the input is not changed.

        Ranks: all.

        Args:
            data: A tensor, a number, or a nested structure of them.
            reduce_op: `"mean"`, `"sum"`, `"max"` or `"min"`.
        """
        return self.collectives.all_reduce(data, reduce_op)

    def all_gather(self, data: Any, *, sync_grads: bool = False) -> Any:
        """Stack tensors of all ranks along a new first dim of size `world_size`, also on one rank.

        Ranks: all.

        Args:
            data: A tensor, a number, or a nested structure of them.
            sync_grads: Gradients go back to the rank that a part is of: the sum of those that all ranks have for it.
        """
        return gather_with_gradients(self.collectives, data) if sync_grads else self.collectives.all_gather(data)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank `src`, on every rank.

        Ranks: all.
        """
        return self.collectives.broadcast(obj, src)

    def check_parameters(self, module: nn.Module, *, buffers: bool = False, step: int | None = None) -> int:
        """Compare a module's parameters over ranks, bit for bit; parameters that are sharded are left out.

        Ranks: all (one small message, none on one rank).

        Args:
            module: From `setup`, or any other that all ranks should hold alike.
            buffers: Compare buffers too.
            step: Named in the error.

        Returns:
            How many tensors were compared.

        Raises:
            ModelError: On every rank, naming the first that differs.
        """
        return check_same_values(module, self.collectives, buffers=buffers, step=step)

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Rank 0 runs the block first, then all others: to download or prepare something once.

        Ranks: all.

        Args:
            local: The first rank of each machine goes first.
        """
        is_first = self.local_rank == 0 if local else self.is_global_zero
        if not is_first:
            self.barrier()
        yield
        if is_first:
            self.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if self.is_global_zero:
            print(*args, **kwargs)

    @staticmethod
    def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
        """Seed Python, NumPy and torch. See `drivetrain.seed_everything`."""
        return seed_everything(seed, workers, verbose)

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Write one value to all loggers, on rank 0."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write values to all loggers, on rank 0; tensors are read back from the device here."""
        if not self.is_global_zero:
            return
        plain = {name: float(v.detach() if isinstance(v, torch.Tensor) else v) for name, v in metrics.items()}
        for logger in self._loggers:
            logger.log_metrics(plain, step)

    def call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        """Run a method of every callback that has it."""
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if callable(method):
                method(*args, **kwargs)


def _run_in_rank(
    ranks: Ranks, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rng: dict[str, Any]
) -> Any:
    """In a new process: begin with the launching process's random state, as if the run were there."""
    restore_rng(rng)
    ranks._open(current_cluster())
    try:
        return function(ranks, *args, **kwargs)
    finally:
        ranks.close()


def _nothing(ranks: Ranks) -> None:
    """The program goes on in this rank."""
