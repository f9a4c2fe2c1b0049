"""The raw-loop toolkit: a hand-written loop, on any number of ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import ModelError
from drivetrain.base.rng import capture_rng, restore_rng
from drivetrain.base.tree import move_to
from drivetrain.data.loader import Loader
from drivetrain.device.accelerator import Accelerator
from drivetrain.fabric.checkpoints import Checkpoints
from drivetrain.fabric.compiled import Compile, Compiler, compile_in_place, make_compiler, take_wrappers_off
from drivetrain.fabric.evaluation_batches import evaluation_batches
from drivetrain.fabric.fabric_module import FabricModule, KnowsFabric, drop_wrapper
from drivetrain.fabric.fabric_optimizer import check_optimizer, wrap_optimizers
from drivetrain.fabric.loaders import make_loader
from drivetrain.fabric.micro_batch_finder import MicroBatchFinder
from drivetrain.fabric.plan import make_plan
from drivetrain.fabric.saves import Saves
from drivetrain.fabric.skip_init import SkipInit
from drivetrain.launch.launch_script import DEFAULT_GRACE_S
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.loggers.logger import Logger
from drivetrain.precision.precision import Precision, default_dtype, given_precision
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy

_STEP_METHODS = ("training_step", "validation_step", "test_step", "predict_step")


class Fabric(Checkpoints):
    """Everything that a hand-written training loop needs to run on any number of ranks.

    Args:
        accelerator: `"auto"`, `"cpu"`, `"cuda"` (`"gpu"`), `"mps"`.
        devices: Devices of each machine: a number, `"auto"`, or a list of GPU indices.
        strategy: A name (`"auto"`, `"ddp"`, `"ddp_spawn"`, `"dp"`, ...) or a `Strategy`.
        precision: `"32-true"`, `"64-true"`, `"bf16-mixed"`, `"16-mixed"`, `"bf16-true"`, `"16-true"`.
        plugins: A `Precision`, instead of the argument; nothing else is taken.
        num_nodes: Machines; more than one need a launcher such as torchrun.
        callbacks: Objects whose methods `call` runs.
        loggers: Where `log` writes.
        grace_s: Seconds that ranks get to save, after a signal to the process that launched them.
        patience: How long ranks may show nothing before the run is ended.
        max_restarts: How often all ranks are started again after one has failed; see `launch`.

    Example:
        fabric = Fabric(devices=2)
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(loader)
        for window in fabric.windows(loader, model, optimizer, size=4):
            for x, y in window:
                window.backward(loss_of(model(x), y))
    """

    tells_modules = True  # a `drivetrain.Module` of a fabric that it is one; false inside of a trainer

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        devices: int | str | Sequence[int] = "auto",
        strategy: Strategy | str = "auto",
        precision: Precision | str | int | None = None,
        plugins: Any = None,
        num_nodes: int = 1,
        callbacks: Any = None,
        loggers: Logger | Sequence[Logger] | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        patience: Patience | None = None,
        max_restarts: int = 0,
    ) -> None:
        plan = make_plan(
            accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy,
            precision=given_precision(precision, plugins), max_restarts=max_restarts,
        )  # fmt: skip
        super().__init__(plan, [loggers] if isinstance(loggers, Logger) else list(loggers or []), grace_s)
        if callbacks is None:
            callbacks = []
        self.patience = patience or DEFAULT_PATIENCE
        self.callbacks: list[Any] = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        self._modules = []
        self._seed: int | None = None
        self.saves = Saves()

    def close(self) -> None:
        """Leave the run: wrappers are dropped, then the process groups that drivetrain made are destroyed.

        A save that is still being written is waited for.

        Ranks: all.

        Raises:
            CheckpointError: That save failed, nobody was told, and no other error is on its way.
        """
        try:
            if sys.exc_info()[0] is None:
                self.saves.settle()
        finally:
            self.saves.close()
            for module in self._modules:
                drop_wrapper(module)
            self._modules.clear()
            super().close()

    # ---------------------------------------------------------------- setup

    def setup(
        self, module: nn.Module, *optimizers: Optimizer, methods: Iterable[str] | None = None, compile: Compile = None,
        _reapply_compile: bool = True,
    ) -> Any:  # fmt: skip
        """Bring a module to the device and wrap it, and its optimizers with it.

        Ranks: all.

        Args:
            module: The user's module.
            optimizers: Optimizers of its parameters. They come back unchanged unless losses are scaled.
            methods: Further methods that are called through the wrapper; `forward` and the step methods always are.
            compile: Compile calls of the module and of its parts, in place: True, or arguments of `torch.compile`. By
                default as the module was compiled before.
            _reapply_compile: False does not compile a module that was compiled before.

        Returns:
            The module alone, or a tuple of the module and the optimizers.

        Raises:
            OptimizerError: An optimizer holds parameters that are not the module's.
        """
        for optimizer in optimizers:
            check_optimizer(optimizer, module)
        prepared_module = self.setup_module(module, methods=methods, compile=compile, _reapply_compile=_reapply_compile)
        prepared_optimizers = self.setup_optimizers(*optimizers) if optimizers else ()
        if not optimizers:
            return prepared_module
        return (prepared_module, *(prepared_optimizers if len(optimizers) > 1 else (prepared_optimizers,)))

    def setup_module(
        self, module: nn.Module, *, methods: Iterable[str] | None = None, compile: Compile | Compiler = None,
        _reapply_compile: bool = True,
    ) -> FabricModule:  # fmt: skip
        """Bring a module to the device and wrap it; see `setup`.

        Ranks: all.

        Raises:
            ModelError: It is wrapped already, or is not a module.
            ConfigError: It cannot be compiled as it was asked for.
        """
        compiler = make_compiler(compile)
        module, found = take_wrappers_off(module)
        if isinstance(module, FabricModule) or not isinstance(module, nn.Module):
            raise ModelError(
                f"setup got {'a module that was set up already' if isinstance(module, nn.Module) else repr(module)}.",
                code="setup-module",
                do="Give it the user's own nn.Module, once.",
            )
        strategy = self._running
        steps = [name for name in _STEP_METHODS if callable(getattr(module, name, None))]
        prepared = strategy.prepare(module, methods={"forward", *steps, *(methods or ())})
        compiler = found if compile is None and _reapply_compile else compiler
        compile_in_place(prepared, compiler, strategy.traits)
        wrapped = FabricModule(prepared, strategy)
        self._modules.append(wrapped)
        if self.tells_modules and isinstance(prepared.original, KnowsFabric):
            prepared.original._fabric = self
        return wrapped

    def renew(self, prepared: Prepared) -> Prepared:
        """Wrap a module anew that was set up when other parameters needed gradients.

        Ranks: all.
        """
        renewed = self._running.prepare(prepared.original, methods=prepared.methods)
        for module in self._modules:
            if module.prepared is prepared:
                module.__dict__["_fabric_prepared"] = renewed  # to set it as an attribute reaches the user's module
        return renewed

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Optimizers whose `step` knows of the loss scaling, and of ranks that step apart; else the user's own objects.

        Where ranks step apart, a step of the last optimizer of a module is one step of its round: set up all
        optimizers of a module together.

        Returns:
            One optimizer, or a tuple.
        """
        prepared = [module.prepared for module in self._modules]
        for optimizer in optimizers:
            self._running.adopt_optimizer(optimizer, prepared)
        wrapped = wrap_optimizers(optimizers, self._running, prepared)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def setup_dataloaders(
        self,
        *loaders: Any,
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
        training: bool = True,
        convert_input: bool = False,
        uneven: str = "join",
        global_batch_size: int | None = None,
        micro_batch_size: int | str | MicroBatchFinder | None = None,
        drops_last: bool = False,
    ) -> Any:
        """Shard loaders over ranks, and bring their batches to the device.

        Ranks: all.

        Args:
            loaders: DataLoaders or other iterables; they are not changed.
            use_distributed_sampler: False leaves the loader as it is: it shards itself.
            move_to_device: Batches are brought to the device as they are handed out.
            training: False for evaluation, in which each sample is seen once, on some rank.
            convert_input: Bring floating tensors of batches to the parameters' dtype. A module from `setup` does so
                itself.
            uneven: When ranks hold different numbers of batches: `"join"` (each sample counts once), `"stop"` (all stop
                with the first) or `"error"`.
            global_batch_size: Samples of one optimizer step on all ranks together: `windows` are made of it.
            micro_batch_size: Samples of a micro-batch at most, on each rank. By default the loader's batch size, which
                must divide; a number fits any global batch; `"auto"` (or a `MicroBatchFinder`) begins with all of a
                rank's share, and splits what does not fit into memory: run `window.run(step)` then.
            drops_last: Leave out a last global batch that is not full.

        Returns:
            One loader, or a list.

        Raises:
            DataError: A loader that cannot be sharded, or is empty.
        """
        strategy = self._running
        if self._seed is None:
            self._seed = strategy.collectives.broadcast(torch.initial_seed())
        made = [
            make_loader(
                loader, strategy, seed=self._seed, training=training, is_moved=move_to_device,
                is_sharded_here=use_distributed_sampler, is_converted=convert_input, uneven=uneven,
                global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, drops_last=drops_last,
            )
            for loader in loaders
        ]  # fmt: skip
        return made[0] if len(made) == 1 else made

    # ---------------------------------------------------------------- the step

    def agreed_model(self, module: FabricModule) -> AbstractContextManager[None]:
        """The model on which all ranks agree is in the module for a block: to evaluate it, or to export its weights.

        Ranks: all.
        """
        (prepared,) = self._prepared(module)
        return self._running.agreed_model(prepared)

    def evaluation_batches(self, loader: Loader, module: FabricModule, *, method: str = "forward") -> Iterator[Any]:
        """The batches of an evaluation, in which the module is called once for each, without gradients.

        Under a strategy that gathers parameters in a call (FSDP) every rank has to take part in every call, also a rank
        whose batches have run out: here it does. Under other strategies this is the loader.

        Ranks: all.

        Args:
            loader: From `setup_dataloaders`.
            module: From `setup`.
            method: What is called.
        """
        (prepared,) = self._prepared(module)
        for _, batch in evaluation_batches(loader, self._running, prepared, method=method):
            yield batch

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's context, for code outside of a module's forward."""
        running = self._running.running
        return running.precision.context_for(running.device.type)()

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Make a module's parameters on the run's device and in its dtype straight away.

        Args:
            empty_init: Skip the initialisation: weights are loaded afterwards.
        """
        running = self._running.running
        dtype = running.precision.parameter_dtype or torch.get_default_dtype()
        with running.device, default_dtype(dtype), SkipInit() if empty_init else nullcontext():
            yield

    def init_tensor(self) -> AbstractContextManager[None]:
        """Make tensors on the run's device and in its dtype straight away."""
        return self.init_module()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A block after which nothing is left of what was set up in it, and the random state is what it was.

        Ranks: all.
        """
        strategy = self._running
        rng, seed, num_modules = capture_rng(), self._seed, len(self._modules)
        scaling = strategy.scaler.state_dict() if strategy.scaler is not None else None
        try:
            yield
        finally:
            for module in self._modules[num_modules:]:
                drop_wrapper(module)
            del self._modules[num_modules:]
            self._seed = seed
            if strategy.scaler is not None and scaling is not None:
                strategy.scaler.load_state_dict(scaling)
            restore_rng(rng)

    def to_device(self, obj: Any) -> Any:
        """A module, a tensor or a nested structure on the run's device."""
        return move_to(obj, self._running.device)
