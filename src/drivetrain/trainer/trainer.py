"""The Trainer: from arguments to a plan, a launch and a loop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.interval import Interval
from drivetrain.base.locations import is_url
from drivetrain.device.accelerator import Accelerator
from drivetrain.fabric.compiled import Compile, make_compiler
from drivetrain.fabric.fabric import Fabric
from drivetrain.fabric.micro_batch_finder import MicroBatchFinder
from drivetrain.fabric.saves import SaveHandle
from drivetrain.launch.failure_file import FAILURE_FOLDER
from drivetrain.launch.launch_script import DEFAULT_GRACE_S
from drivetrain.launch.patience import Patience
from drivetrain.loggers.logger import Logger
from drivetrain.loop.callback import Callback
from drivetrain.loop.data_module import DataModule
from drivetrain.loop.limits import Limits
from drivetrain.loop.module import Module
from drivetrain.loop.window_sizes import Sizes
from drivetrain.precision.precision import Precision
from drivetrain.profilers.by_name import make_profiler
from drivetrain.profilers.profiler import Profiler
from drivetrain.strategies.strategy import Strategy
from drivetrain.trainer import arguments, trainer_state
from drivetrain.trainer.checkpoint_search import make_search
from drivetrain.trainer.defaults import (
    default_callbacks,
    default_loggers,
    root_directory,
)
from drivetrain.trainer.evaluations import Evaluations
from drivetrain.trainer.preemption import make_exit
from drivetrain.trainer.registration import check_registration
from drivetrain.trainer.run import run_fit


class InnerFabric(Fabric):
    """That of a trainer, which its modules know instead."""

    tells_modules = False


class Trainer(Evaluations):
    """Runs a `Module` over data: `fit`, `validate`, `test`, `predict`.

    Args:
        accelerator: `"auto"`, `"cpu"`, `"cuda"` (`"gpu"`), `"mps"`.
        strategy: A name (`"auto"`, `"ddp"`, `"ddp_spawn"`, `"ddp_fork"`, `"dp"`, ...) or a `Strategy`.
        devices: Devices of each machine: a number, `"auto"`, or a list of GPU indices.
        num_nodes: Machines; more than one need a launcher such as torchrun.
        precision: `"32-true"`, `"64-true"`, `"bf16-mixed"`, `"16-mixed"`, `"bf16-true"`, `"16-true"`.
        plugins: A `Precision`, instead of the argument; nothing else is taken.
        logger: One or several loggers; `True` for a `CSVLogger`, `False` for none.
        callbacks: One or several callbacks.
        fast_dev_run: Run this many batches of everything (`True`: one), without logger and checkpoints.
        max_epochs: Epochs; by default 1000 if `max_steps` is not given either, -1 for no end.
        min_epochs: Not stopped early before.
        max_steps: Optimizer steps; -1 for no end.
        min_steps: Not stopped early before.
        max_time: Training ends after the step at which so much time has passed, resumes included: a `timedelta`, its
            arguments as a mapping (`{"hours": 2}`), or text `"DD:HH:MM:SS"`.
        limit_train_batches: Micro-batches of an epoch on each rank: a number, or a part of all.
        limit_val_batches: Likewise for validation.
        limit_test_batches: Likewise for the test.
        limit_predict_batches: Likewise for prediction.
        val_check_interval: Validate within an epoch: after a number of micro-batches (`int`), or after a part of the
            epoch (`float`); or at the multiples of an interval with a unit (`"500 steps"`, `"1e6 samples"`, `"30 min"`,
            an `Interval` or a `timedelta`), counted from the start of the run.
        check_val_every_n_epoch: Validate in each n-th epoch; `None` counts `val_check_interval` over epochs.
        num_sanity_val_steps: Batches of validation before training; -1 for all.
        log_every_n_steps: Optimizer steps between two rows of the loggers; 50 by default.
        log_every: The same with a unit, such as `"10_000 samples"`.
        enable_checkpointing: Add a `ModelCheckpoint` if there is none.
        enable_progress_bar: Add a progress bar if there is none.
        enable_model_summary: Add a `ModelSummary` if there is none.
        accumulate_grad_batches: Micro-batches of a window: of one optimizer step, on each rank. A number; the first
            epoch of each size (`{0: 8, 4: 4}`); or a function of the optimizer steps done.
        global_batch_size: Samples of one optimizer step on all ranks together, instead of `accumulate_grad_batches`:
            a multiple of the loader's batch size times the ranks, unless `micro_batch_size` is given.
        micro_batch_size: Samples of a micro-batch at most, on each rank, instead of the loader's batch size; any global
            batch is cut to fit. `"auto"`, or a `MicroBatchFinder`: as many as fit into memory.
        gradient_clip_val: Clip the gradients of each step; 0 or `None` for no clipping.
        gradient_clip_algorithm: `"norm"` or `"value"`.
        deterministic: Use deterministic algorithms alone (`"warn"`: where there are any).
        benchmark: Let cuDNN look for the fastest algorithms.
        barebones: Train, and nothing else: no logger, checkpoints, bar, summary or sanity check.
        overfit_batches: Train and validate on so many batches, or a part of all, which are the same in each epoch.
        reload_dataloaders_every_n_epochs: Ask the module or data module for new loaders so often; 0 for never.
        detect_anomaly: torch looks for operations whose gradient is nan, and names them; slow.
        inference_mode: Evaluate in `torch.inference_mode` instead of `torch.no_grad`.
        use_distributed_sampler: Shard loaders over ranks. False: they do it themselves.
        sync_batchnorm: Batch norms take their statistics over all ranks; needs GPUs.
        uneven: When ranks hold different numbers of batches: `"join"` (each sample counts once), `"stop"` (all stop
            with the first) or `"error"`.
        remainder: Micro-batches that do not fill a window at the end of an epoch: `"step"` (with the right scale),
            `"carry"` (into the next epoch) or `"drop"`.
        nonfinite: A loss or gradient that is inf or nan: `"ignore"`, `"skip"` the step, or `"error"`. The latter two
            read one number back from the device in each step.
        patience: How long ranks may show nothing before the run is ended.
        default_root_dir: Where logs, checkpoints and failures go; of a URL only the checkpoints.
        max_restarts: How often all ranks that drivetrain starts are started again after one has failed. `fit` goes on
            from the newest checkpoint that it has saved and that is whole; without one, as at the first start.
        grace_s: Seconds that ranks get to save, after a signal to the process that launched them.
        profiler: `"simple"`, `"advanced"`, `"pytorch"`, or a `drivetrain.profilers.Profiler`.
        compile: Compile calls of the module's parts, in place: True, or arguments of `torch.compile`.
        enable_autolog_hparams: Give the module's hyperparameters to the loggers when training starts.
        model_registry: A name under which the best checkpoint is registered when training has ended: as a version of
            that model, where the `MLFlowLogger` or the `WandbLogger` of the run writes to.

    Raises:
        ConfigError: An argument is unknown, or arguments do not fit together.
    """

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: int | str | Sequence[int] = "auto",
        num_nodes: int = 1,
        precision: Precision | str | int | None = None,
        plugins: Any = None,
        logger: Logger | Sequence[Logger] | bool | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: timedelta | Mapping[str, int] | str | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        val_check_interval: int | float | str | timedelta | Interval | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        log_every: str | timedelta | Interval | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: Sizes = 1,
        global_batch_size: int | None = None,
        micro_batch_size: int | str | MicroBatchFinder | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        deterministic: bool | str = False,
        benchmark: bool | None = None,
        barebones: bool = False,
        overfit_batches: int | float = 0.0,
        reload_dataloaders_every_n_epochs: int = 0,
        detect_anomaly: bool = False,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        sync_batchnorm: bool = False,
        uneven: str = "join",
        remainder: str = "step",
        nonfinite: str = "ignore",
        patience: Patience | None = None,
        default_root_dir: str | Path | None = None,
        max_restarts: int = 0,
        grace_s: float = DEFAULT_GRACE_S,
        profiler: Profiler | str | None = None,
        compile: Compile = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        **unknown: Any,
    ) -> None:
        arguments.refuse_unknown(
            unknown, [name for name in inspect.signature(Trainer.__init__).parameters if name != "unknown"]
        )
        arguments.check_clip(gradient_clip_val, gradient_clip_algorithm)
        if barebones:
            arguments.check_barebones(
                logger=logger, enable_checkpointing=enable_checkpointing, enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary, num_sanity_val_steps=num_sanity_val_steps,
                fast_dev_run=fast_dev_run, detect_anomaly=detect_anomaly, profiler=profiler,
                model_registry=model_registry,
            )  # fmt: skip
            logger = enable_checkpointing = enable_progress_bar = enable_model_summary = False
        self.overfit_batches = overfit_batches
        if overfit_batches:
            limit_train_batches = limit_val_batches = overfit_batches
        self.reload_dataloaders_every_n_epochs = arguments.check_reload(reload_dataloaders_every_n_epochs)
        self.fast_dev_run = fast_dev_run
        num_fast = int(fast_dev_run)
        self.default_root_dir = root_directory(default_root_dir)
        self._loggers = [] if num_fast else default_loggers(logger, self.default_root_dir)
        self.callbacks = default_callbacks(
            callbacks,
            checkpoint=(enable_checkpointing is None or enable_checkpointing) and not num_fast,
            progress_bar=enable_progress_bar is None or enable_progress_bar,
            summary=enable_model_summary is None or enable_model_summary,
            max_time=max_time,
        )
        self.model_registry = check_registration(
            None if num_fast else model_registry, self._loggers, has_checkpoints=self.checkpoint_callback is not None
        )
        self._fabric = InnerFabric(
            accelerator=accelerator, devices=devices, strategy=strategy, precision=precision, plugins=plugins,
            num_nodes=num_nodes, callbacks=self.callbacks, loggers=self._loggers, grace_s=grace_s, patience=patience,
            max_restarts=max_restarts,
        )  # fmt: skip
        if not is_url(self.default_root_dir):
            self._fabric.failure_folder = Path(self.default_root_dir) / FAILURE_FOLDER
        if sync_batchnorm:
            self._fabric.strategy.use_sync_batchnorm()
        if max_epochs is None:
            max_epochs = -1 if max_steps != -1 else 1000
        self.limits = Limits(
            max_epochs=1 if num_fast else max_epochs,
            max_steps=num_fast if num_fast else max_steps,
            min_epochs=min_epochs or 0,
            min_steps=min_steps or 0,
            val_every_epochs=1 if num_fast else check_val_every_n_epoch,
            val_interval=1.0 if val_check_interval is None or num_fast else val_check_interval,
            log_every=arguments.log_interval(log_every_n_steps, log_every),
        )
        self.limit_train_batches = num_fast or limit_train_batches
        self.limit_val_batches = num_fast or limit_val_batches
        self.limit_test_batches = num_fast or limit_test_batches
        self.limit_predict_batches = num_fast or limit_predict_batches
        self.num_sanity_val_steps = 0 if num_fast or barebones else arguments.check_sanity_steps(num_sanity_val_steps)
        self.window_sizes = arguments.window_sizes(accumulate_grad_batches, self.callbacks, global_batch_size)
        self.global_batch_size, self.given_micro_batch_size = global_batch_size, micro_batch_size
        self.gradient_clip_val, self.gradient_clip_algorithm = gradient_clip_val, gradient_clip_algorithm
        self.deterministic = arguments.check_deterministic(deterministic)
        self.benchmark, self.detect_anomaly = benchmark, detect_anomaly
        self.profiler, self.compile = make_profiler(profiler), make_compiler(compile) or compile
        self.inference_mode, self.enable_autolog_hparams = inference_mode, enable_autolog_hparams
        self.use_distributed_sampler = use_distributed_sampler
        self.uneven, self.remainder, self.nonfinite = uneven, remainder, nonfinite
        super().__init__()

    # ---------------------------------------------------------------- entry points

    def fit(
        self,
        model: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        *,
        resume: str | Path | None = None,
    ) -> None:
        """Train.

        Ranks: all. Ranks that are not there yet are started.

        Args:
            model: The module.
            train_dataloaders: Its loader, or a datamodule.
            val_dataloaders: One loader of validation, or a list.
            datamodule: Instead of loaders.
            ckpt_path: A checkpoint to go on from, or a folder of such for the newest one that is whole, by path or URL;
                `"last"` or `"best"` of this trainer's `ModelCheckpoint`.
            resume: `"auto"`, instead of `ckpt_path`: go on from the newest checkpoint of this run that is whole, and
                begin from the start if there is none. Each damaged one is named in a warning. Or a path, as above.

        Raises:
            CheckpointError: On every rank, if there is no checkpoint where one was asked for, or it cannot be trusted.
            PreemptedExit: A signal has told the run to end, and it is saved. Uncaught, it is exit code 75.
        """
        if isinstance(train_dataloaders, DataModule):
            train_dataloaders, datamodule = None, train_dataloaders
        start = make_search(None if self.fast_dev_run and resume == "auto" else resume, ckpt_path)
        request = self._request("fit", model, train_dataloaders, val_dataloaders, datamodule, start)
        self.should_stop = False
        self.preempted_by = self.preempted_checkpoint = ""
        with self.in_stage("fit"), self._global_switches():
            trainer_state.take_back(self, request.module, self._fabric.start(run_fit, self, request))
        if self.was_preempted:
            self.state.status = "preempted"
            raise make_exit(self)

    def save_checkpoint(self, filepath: str | Path, weights_only: bool = False, *, wait: bool = True) -> SaveHandle:
        """Write a checkpoint directory, whole or not at all.

        Ranks: all, between two optimizer steps.

        Args:
            filepath: The directory or URL to make, or to replace.
            weights_only: Leave out the optimizers.
            wait: Return when it is there. Otherwise the state is copied, and written while training goes on; the end
                of the run waits for it.

        Returns:
            To `wait()` for, or to `check()` after each step.

        Raises:
            CheckpointError: On every rank, if any rank cannot write; or if the save before has failed.
        """
        if self.run is None:
            raise ConfigError("There is no run to save.", code="outside-run", do="Call it inside or after fit.")
        with self.run.timing.during("checkpoint"):
            return trainer_state.save(self.run, filepath, weights_only=weights_only, wait=wait)
