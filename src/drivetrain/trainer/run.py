"""One run in one rank: everything that `fit`, `validate`, `test` and `predict` set up, do and take down."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, nullcontext
from typing import Any

from drivetrain.fabric.batch_plan import say_plan
from drivetrain.fabric.downloads import Downloads
from drivetrain.fabric.fabric import Fabric
from drivetrain.fabric.newest import whole_checkpoint
from drivetrain.fabric.window_job import Clip, WindowJob
from drivetrain.loop.agreed_end import AgreedEnd
from drivetrain.loop.evaluate_loop import EvaluateLoop
from drivetrain.loop.fit_loop import FitLoop
from drivetrain.loop.hooks import Hooks
from drivetrain.loop.left_over import LeftOver
from drivetrain.loop.manual_fit_loop import ManualFitLoop
from drivetrain.loop.metrics import MetricStore
from drivetrain.loop.optimizers import read_configuration
from drivetrain.loop.step_arguments import num_step_arguments
from drivetrain.loop.step_methods import ModuleSteps
from drivetrain.loop.step_timing import StepTiming
from drivetrain.profilers.profiler import PassThroughProfiler
from drivetrain.profilers.time_spent import TimeSpent
from drivetrain.trainer import trainer_state
from drivetrain.trainer.arguments import check_manual, resolve_limit
from drivetrain.trainer.attached import attached
from drivetrain.trainer.checkpoint_search import CheckpointSearch, find_after_restart, id_of_fit
from drivetrain.trainer.claimed_folders import claimed_folders
from drivetrain.trainer.described_module import describe_module
from drivetrain.trainer.modes import say_eval_mode
from drivetrain.trainer.opened_checkpoint import OpenedCheckpoint, open_checkpoint
from drivetrain.trainer.preemption import save_preempted
from drivetrain.trainer.registration import register_best
from drivetrain.trainer.reloading import reload_between_epochs
from drivetrain.trainer.request import Request
from drivetrain.trainer.run_loaders import LOADER_NAMES, RunLoaders
from drivetrain.trainer.time_report import timed
from drivetrain.trainer.trainer_state import RunResult
from drivetrain.trainer.view import TrainerView


class Run(RunLoaders):
    """One run in one rank. It lives as long as the run does.

    Args:
        fabric: Open in this rank.
        trainer: The user's; it is handed to callbacks.
        request: What to do.
    """

    def __init__(self, fabric: Fabric, trainer: TrainerView, request: Request) -> None:
        profiler = None if isinstance(trainer.profiler, PassThroughProfiler) else trainer.profiler
        if request.stage == "fit":
            trainer.time_spent = TimeSpent(trainer.time_spent.clock)
        super().__init__(fabric, trainer, request, StepTiming(trainer.time_spent, profiler))
        self.rng_to_restore: dict[str, Any] | None = None
        self.carried_to_restore: dict[str, Any] | None = None
        self.left_over: LeftOver | None = None
        self.job: WindowJob | None = None
        self.loop: FitLoop | None = None
        self.evaluation: EvaluateLoop | None = None  # the one that runs, or ran last
        self.resumed_from = ""
        self.kept_window: dict[str, int] | None = None
        self.lineage = secrets.token_hex(8)  # of this fit and of those that go on from its checkpoints
        is_fit = request.stage == "fit" and not request.is_inner
        self.fit_id = id_of_fit(fabric.strategy.cluster) if is_fit else ""
        self._outer_backward = fabric.strategy.own_backward
        trainer.metrics = MetricStore(fabric.collectives)
        trainer.run = self
        self.hooks = Hooks(trainer, self.module, trainer.callbacks)
        self._share_log_dirs()

    # ---------------------------------------------------------------- set up

    def set_up(self) -> None:
        """Data, model, optimizers, checkpoint: in this order, and all before the first hook of the stage.

        Loaders of an evaluation come last; those of a fit after `on_fit_start`, unless they are needed before.

        Ranks: all.
        """
        fabric, trainer, module, stage = self.fabric, self.trainer, self.module, self.request.stage
        if not self.request.is_inner:
            self._set_up_data()
        self.await_loaders()
        if not self.request.is_inner:
            with fabric.init_module():
                module.configure_model()
            if stage == "fit":
                say_eval_mode(module)
        with Downloads(fabric.strategy) as downloads:
            opened = self._open_checkpoint(downloads)
            self.prepared = fabric.setup_module(module, compile=self.request.compiler).prepared
            if stage == "fit":
                if trainer.global_batch_size is not None:
                    self.make_loaders()  # what a window is follows from them
                made = read_configuration(module.configure_optimizers(), module)
                trainer.optimizers, trainer.lr_scheduler_configs = made
            if opened is not None:
                trainer_state.load(self, opened, weights_only=stage != "fit")
                self.resumed_from = opened.name
        if stage == "fit":
            describe_module(trainer, module)
        else:
            self.make_loaders()

    def _set_up_data(self) -> None:
        owners = [one for one in (self.datamodule, self.module) if one is not None]
        if self.fabric.local_rank == 0:
            for owner in owners:
                owner.prepare_data()
        self.fabric.barrier()
        if self.datamodule is not None:
            self.datamodule.trainer = self.trainer
            self.datamodule.setup(self.request.stage)
        for hook in self.hooks.setup:
            hook(self.request.stage)

    def _open_checkpoint(self, downloads: Downloads) -> OpenedCheckpoint | None:
        """Hooks see it while the module may still be changed, so that it fits."""
        asked = self.request.ckpt_path
        found = find_after_restart(self, downloads)
        if found is None and asked is not None:
            is_search = isinstance(asked, CheckpointSearch)
            found = asked.find(self, downloads) if is_search else whole_checkpoint(downloads, asked)
        return None if found is None else open_checkpoint(self, downloads.directory_of(found), name=found)

    def is_told_to_end(self) -> bool:
        """This process was told by a signal to end; of an inner run it is the outer one that does."""
        return not self.request.is_inner and self.fabric.stop_signals.is_noted()

    def renew_wrapper(self) -> None:
        """Prepare the module again, if other parameters need gradients than when it was prepared.

        Ranks: all, between two windows.
        """
        if self.prepared.is_outdated:
            self.prepared = self.fabric.renew(self.prepared)
            if self.job is not None:
                self.job.prepared = [self.prepared]

    # ---------------------------------------------------------------- loops

    def make_fit_loop(self) -> FitLoop:
        """The loop of training."""
        trainer, loader = self.trainer, self.train_loader
        assert loader is not None
        clip_value = trainer.gradient_clip_val or None
        clips_norm = trainer.gradient_clip_algorithm == "norm"
        clip = Clip(clip_value, None) if clips_norm else Clip(None, clip_value)
        job = WindowJob(
            self.fabric.strategy, [self.prepared], trainer.optimizers, lambda _step: trainer.accumulate_grad_batches,
            clip, trainer.uneven, remainder=trainer.remainder, nonfinite=trainer.nonfinite,
            num_steps=trainer.global_step, wants_stop=lambda: trainer.should_stop,
            wants_end=self.is_told_to_end, finder=loader.finder,
        )  # fmt: skip
        self.job = job
        say_plan(loader, job)
        trainer_state.restore_carried(self)
        if self.loaders:
            trainer.limits.require_reachable(trainer.num_training_batches)
        parts: dict[str, Any] = {
            "job": job,
            "loader": loader,
            "hooks": self.hooks,
            "metrics": trainer.metrics,
            "progress": trainer.progress,
            "limits": trainer.limits,
            "schedulers": trainer.lr_scheduler_configs,
            "loggers": trainer.loggers,
            "validate": self.timing.around("validation", self.validate) if self.loaders else None,
            "save": self.timing.around("checkpoint", lambda: save_preempted(self)),
            "limit_batches": resolve_limit("limit_train_batches", trainer.limit_train_batches, loader.num_rounds),
            "takes_index": num_step_arguments(self.module, "training_step", 2) == 2,
            "restore_rng": lambda: trainer_state.restore_run_rng(self),
            "resumed": self.left_over,
        }
        if self.module.automatic_optimization:
            self.loop = FitLoop(**parts)
        else:
            check_manual(trainer, self.fabric.strategy)
            self.loop = ManualFitLoop(**parts, module=self.module)
        ModuleSteps(self.module, self.loop, (trainer.gradient_clip_val, trainer.gradient_clip_algorithm))
        if trainer.reload_dataloaders_every_n_epochs:
            reload_between_epochs(self, self.loop)
        return self.loop

    def make_evaluate_loop(self, stage: str, *, limit: int | None = None) -> EvaluateLoop:
        """The loop of one evaluation stage."""
        trainer = self.trainer
        name = f"limit_{LOADER_NAMES[stage]}_batches"
        limits = [resolve_limit(name, getattr(trainer, name), loader.num_batches) for loader in self.loaders]
        if limit is not None:
            limits = [limit if one is None else min(one, limit) for one in limits]
        self.evaluation = EvaluateLoop(
            stage=stage,
            strategy=self.fabric.strategy,
            prepared=self.prepared,
            loaders=self.loaders,
            limits=limits,
            hooks=self.hooks,
            metrics=trainer.metrics,
            loggers=trainer.loggers,
            progress=trainer.progress,
            inference_mode=trainer.inference_mode,
            keeps_predictions=self.request.keeps_predictions,
        )
        return self.evaluation

    def validate(self) -> bool:
        """Validation inside of `fit`; false if it was left, since the run was told to end.

        Ranks: all.
        """
        loop = self.make_evaluate_loop("validate")
        with self.trainer.in_stage("validate"):
            loop.agreed_end = AgreedEnd(self.fabric.collectives, self.fabric.stop_signals.is_noted)
            loop.run()
        return not loop.is_left

    def sanity_check(self) -> None:
        """A few batches of validation before training, so that its errors show early; nothing of it is kept.

        Ranks: all.
        """
        trainer = self.trainer
        steps = trainer.num_sanity_val_steps
        if not self.loaders or steps == 0 or self.resumed_from:
            return
        with trainer.in_stage("sanity_check"):
            for hook in self.hooks.on_sanity_check_start:
                hook()
            self.make_evaluate_loop("validate", limit=None if steps == -1 else steps).run(is_written=False)
            for hook in self.hooks.on_sanity_check_end:
                hook()
        trainer.metrics.callback_metrics.clear()

    # ---------------------------------------------------------------- take down

    def take_down(self) -> None:
        """After the run, also after an error.

        Ranks: any.
        """
        stage, is_inner = self.request.stage, self.request.is_inner
        self.fabric.strategy.own_backward, self.evaluation = self._outer_backward, None
        if self.datamodule is not None and not is_inner:
            self.datamodule.teardown(stage)
        for hook in self.hooks.teardown if not is_inner else ():
            hook(stage)
        if self.kept_window is not None:  # the argument is as it was given
            self.trainer.accumulate_grad_batches = self.kept_window["accumulate"]
        if self.loop is not None:
            self.loop.at.window = None  # it holds the loader's iterator, and that its workers
        self.close_loaders()

    def scaler_state(self) -> dict[str, Any]:
        """The loss scaling's state; empty without one."""
        loss_scale = self.fabric.strategy.loss_scale
        if loss_scale is None:
            return {}
        loss_scale.update()
        return loss_scale.scaler.state_dict()

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Restore the loss scaling."""
        scaler = self.fabric.strategy.scaler
        if scaler is not None and state:
            scaler.load_state_dict(state)

    @property
    def data_seed(self) -> int | None:
        """The seed of the data order."""
        return self.train_loader.seed if self.train_loader is not None else None

    @data_seed.setter
    def data_seed(self, seed: int | None) -> None:
        if self.train_loader is not None and seed is not None:
            self.train_loader.seed = seed

    def _share_log_dirs(self) -> None:
        for logger in self.trainer.loggers:
            version = self.fabric.broadcast(logger.version)
            if version != logger.version:
                logger.version = version


def run_fit(fabric: Fabric, trainer: TrainerView, request: Request) -> RunResult:
    """Train in this rank.

    Ranks: all.
    """
    run = Run(fabric, trainer, request)
    with ExitStack() as stack, attached(run):
        run.set_up()
        for hook in run.hooks.on_fit_start:
            hook()
        run.make_loaders()
        stack.enter_context(claimed_folders(run))
        run.sanity_check()
        loop = run.make_fit_loop()
        with nullcontext() if request.is_inner else fabric.stop_signals, timed(run, loop):
            loop.run()
        for hook in run.hooks.on_fit_end:
            hook()
        fabric.saves.settle()
        result = trainer_state.bring_back(run, None) if request.is_elsewhere else RunResult()
    register_best(trainer)
    return result


def run_evaluation(fabric: Fabric, trainer: TrainerView, request: Request) -> RunResult:
    """Validate, test or predict in this rank.

    Ranks: all.
    """
    run = Run(fabric, trainer, request)
    with attached(run):
        run.set_up()
        loop = run.make_evaluate_loop(request.stage)
        value: Any = loop.run()
        if request.stage == "predict":
            value = loop.predictions if len(loop.loaders) > 1 else loop.predictions[0]
        return trainer_state.bring_back(run, value) if request.is_elsewhere else RunResult(value)
