"""What callbacks, modules and users read of a trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from drivetrain.base.progress import Progress
from drivetrain.callbacks.progress_bar import is_bar
from drivetrain.comm.collectives import SoloCollectives
from drivetrain.loggers.logger import Logger
from drivetrain.loop.callback import Callback
from drivetrain.loop.limits import Limits
from drivetrain.loop.metrics import MetricStore
from drivetrain.loop.module import Module
from drivetrain.loop.optimizers import LRSchedulerConfig
from drivetrain.loop.window_sizes import WindowSizes
from drivetrain.profilers.profiler import Profiler
from drivetrain.profilers.time_spent import TimeSpent
from drivetrain.trainer.absent_members import ABSENT_MEMBERS
from drivetrain.trainer.batch_counts import limited, loader_lengths
from drivetrain.trainer.given_loaders import as_given
from drivetrain.trainer.loop_view import LoopViews
from drivetrain.trainer.rank_view import RankView
from drivetrain.trainer.stage import RunningStage, TrainerFn, TrainerState, TrainerStatus


class TrainerView(LoopViews, RankView):
    """The state of a trainer, and everything that is derived from it.

    Attributes:
        progress: The counters.
        should_stop: Set it to end training; ranks agree on it at the end of the step.
        preempted_by: The signal that ended the last fit, on whichever rank: `"SIGTERM"`; else empty.
        preempted_checkpoint: What was saved then.
        metrics: Logged values.
        model: The module of the last run.
        datamodule: Its datamodule.
        optimizers: Its optimizers.
        lr_scheduler_configs: Its schedulers.
        callbacks: In the order in which their hooks run.
        profiler: Told of every action of training; give it your own by `with trainer.profiler.profile(name)`.
        time_spent: Where the time of the last training went, in `seconds` of this rank; `summary()` is a table.
    """

    _loggers: list[Logger]
    callbacks: list[Callback]
    limits: Limits
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    limit_predict_batches: int | float | None
    num_sanity_val_steps: int
    window_sizes: WindowSizes
    global_batch_size: int | None
    given_micro_batch_size: Any
    overfit_batches: int | float
    reload_dataloaders_every_n_epochs: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str
    inference_mode: bool
    enable_autolog_hparams: bool
    model_registry: str | None
    use_distributed_sampler: bool
    uneven: str
    remainder: str
    nonfinite: str
    fast_dev_run: int | bool
    default_root_dir: str
    deterministic: bool | str
    benchmark: bool | None
    detect_anomaly: bool
    profiler: Profiler

    def __init__(self) -> None:
        self.progress = Progress()
        self.should_stop = False
        self.preempted_by = self.preempted_checkpoint = ""
        self.metrics = MetricStore(SoloCollectives())
        self.state = TrainerState()
        self.model: Module | None = None
        self.datamodule: Any = None
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.time_spent = TimeSpent()
        self.run: Any = None  # the `Run` of this rank, from its start on

    def __getstate__(self) -> dict[str, Any]:
        # What belongs to a running rank stays there.
        return {**self.__dict__, "run": None, "metrics": MetricStore(SoloCollectives()), "optimizers": []}

    def __getattr__(self, name: str) -> Any:
        instead = ABSENT_MEMBERS.get(name)
        hint = f": {instead}. All names: docs/protocol.md" if instead is not None else ""
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{hint}", name=name, obj=self)

    # ---------------------------------------------------------------- counters

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return self.progress.step

    @property
    def micro_step(self) -> int:
        """Micro-batches done on each rank."""
        return self.progress.micro_step

    @property
    def current_epoch(self) -> int:
        """Epochs completed; the number of the one that runs, from 0."""
        return self.progress.epoch

    @property
    def max_epochs(self) -> int:
        """Epochs at most; -1 for no end."""
        return self.limits.max_epochs

    @property
    def max_steps(self) -> int:
        """Optimizer steps at most; -1 for no end."""
        return self.limits.max_steps

    @property
    def min_epochs(self) -> int:
        """Not stopped early before."""
        return self.limits.min_epochs

    @property
    def min_steps(self) -> int:
        """Not stopped early before."""
        return self.limits.min_steps

    @property
    def val_check_interval(self) -> Any:
        """Between two validations within an epoch, as given; 1.0 for the end of the epoch alone."""
        return self.limits.val_interval

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """Epochs between two validations."""
        return self.limits.val_every_epochs

    @property
    def log_every_n_steps(self) -> int:
        """Optimizer steps between two rows of the loggers; 1 where they are not counted in steps."""
        return int(self.limits.log_every.length) if self.limits.log_every.unit == "step" else 1

    @property
    def is_log_step(self) -> bool:
        """Values of the step that was just made are written to the loggers; read it in `on_step_end`."""
        return self.metrics.is_log_step

    @property
    def num_training_batches(self) -> int | float:
        """Micro-batches of an epoch on each rank; inf if unknown."""
        loader = self.run.train_loader if self.run is not None else None
        rounds: int | None = loader.num_rounds if loader is not None else None
        if rounds is None:
            return math.inf
        return limited("limit_train_batches", self.limit_train_batches, rounds)

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of each loader of validation on this rank; inf if unknown."""
        return loader_lengths(self, "limit_val_batches", "fit", "validate")

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of each loader of the sanity check."""
        steps = math.inf if self.num_sanity_val_steps == -1 else self.num_sanity_val_steps
        return [min(number, steps) for number in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of each loader of the test on this rank; inf if unknown."""
        return loader_lengths(self, "limit_test_batches", "test")

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of each loader of prediction on this rank; inf if unknown."""
        return loader_lengths(self, "limit_predict_batches", "predict")

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the whole run, as far as limits and the loader's length tell."""
        if self.max_epochs == -1:
            return math.inf if self.max_steps == -1 else self.max_steps
        batches = self.num_training_batches
        if batches == math.inf:
            return math.inf if self.max_steps == -1 else self.max_steps
        return self.window_sizes.num_steps(
            int(batches), self.max_epochs, math.inf if self.max_steps == -1 else self.max_steps
        )

    @property
    def accumulate_grad_batches(self) -> int:
        """Micro-batches of the window that comes next, on each rank; may be set."""
        return self.window_sizes.at(self.progress)

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, size: int) -> None:
        self.window_sizes = WindowSizes(size)

    @property
    def skipped_steps(self) -> dict[str, int]:
        """Windows of this run that made no step, by reason: `"weight"`, `"non-finite"`, `"drop"`, `"carry"`."""
        job = self.run.job if self.run is not None else None
        return {} if job is None else dict(job.skipped)

    @property
    def has_stepped(self) -> bool:
        """The step that is over changed the weights: it was not skipped; read it in `on_step_end`."""
        return self.run is not None and (self.run.job is None or self.run.job.has_stepped)

    @property
    def has_found_size(self) -> bool:
        """Micro-batches of this run are as large as memory allows."""
        return self.run is not None and self.run.train_loader is not None and self.run.train_loader.finder is not None

    @property
    def micro_batch_size(self) -> int | None:
        """Samples of a micro-batch at most, on each rank: as given, or as found to fit; `None` before that is known."""
        if self.run is None or self.run.train_loader is None:
            return None
        loader = self.run.train_loader
        found: int | None = loader.finder.size if loader.finder is not None else None
        return loader.batch_size if found is None else found

    # ---------------------------------------------------------------- metrics and parts

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Reported values by name, equal on all ranks."""
        return self.metrics.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, float]:
        """What was last written to the loggers."""
        return self.metrics.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """This rank's current values for the bar; read back from the device when this is read."""
        return self.metrics.bar_values()

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self._loggers[0] if self._loggers else None

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._loggers

    @property
    def log_dir(self) -> str | None:
        """Where the first logger writes; else the default root."""
        return (self.logger.log_dir or self.logger.save_dir) if self.logger is not None else self.default_root_dir

    @property
    def lightning_module(self) -> Module | None:
        """The module of the run; the familiar name."""
        return self.model

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint from which the last run went on."""
        return (str(self.run.resumed_from) or None) if self.run is not None else None

    @property
    def train_dataloader(self) -> Any:
        """The user's own loader of training."""
        loader = self.run.train_loader if self.run is not None else None
        return as_given(loader) if loader is not None else None

    @property
    def val_dataloaders(self) -> Any:
        """The user's own loaders of validation."""
        loaders = [as_given(loader) for loader in self.run.loaders] if self.run is not None else []
        return loaders[0] if len(loaders) == 1 else (loaders or None)

    test_dataloaders = predict_dataloaders = val_dataloaders

    @property
    def checkpoint_callback(self) -> Any:
        """The first callback that keeps checkpoints."""
        return next((one for one in self.callbacks if hasattr(one, "best_model_path")), None)

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """All callbacks that keep checkpoints."""
        return [one for one in self.callbacks if hasattr(one, "best_model_path")]

    @property
    def early_stopping_callback(self) -> Any:
        """The first callback that stops early."""
        return next((one for one in self.callbacks if hasattr(one, "wait_count")), None)

    @property
    def progress_bar_callback(self) -> Any:
        """The first progress bar."""
        return next(filter(is_bar, self.callbacks), None)

    # ---------------------------------------------------------------- what runs

    @property
    def training(self) -> bool:
        """A training step may run now."""
        return self.state.fn == "fit" and self.state.stage == "train"

    @property
    def validating(self) -> bool:
        """Validation runs now."""
        return self.state.stage == "validate"

    @property
    def testing(self) -> bool:
        """The test runs now."""
        return self.state.stage == "test"

    @property
    def predicting(self) -> bool:
        """Prediction runs now."""
        return self.state.stage == "predict"

    @property
    def sanity_checking(self) -> bool:
        """The sanity check before training runs now."""
        return self.state.stage == "sanity_check"

    @property
    def was_preempted(self) -> bool:
        """The last fit was told by a signal to end; its state is saved."""
        return bool(self.preempted_by)

    @property
    def interrupted(self) -> bool:
        """The last run was ended by an exception."""
        return self.state.status == "interrupted"

    @contextmanager
    def in_stage(self, stage: str) -> Iterator[None]:
        """Note what runs for a block."""
        found = self.state
        running = "train" if stage == "fit" else stage
        self.state = TrainerState(found.fn or TrainerFn(stage), RunningStage(running), TrainerStatus.RUNNING)
        try:
            yield
        except BaseException:
            self.state = TrainerState(found.fn, found.stage, TrainerStatus.INTERRUPTED)
            raise
        self.state = found if found.fn is not None else TrainerState(None, None, TrainerStatus.FINISHED)

    @contextmanager
    def _global_switches(self) -> Iterator[None]:
        """torch's global switches for the length of a run; afterwards as they were."""
        found = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
        )
        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=self.deterministic == "warn")
        if self.benchmark is not None or self.deterministic:
            torch.backends.cudnn.benchmark = bool(self.benchmark) and not self.deterministic
        try:
            with torch.autograd.set_detect_anomaly(True) if self.detect_anomaly else nullcontext():
                yield
        finally:
            if self.deterministic:
                torch.use_deterministic_algorithms(found[0], warn_only=found[1])
            torch.backends.cudnn.benchmark = found[2]
