"""What a checkpoint of a trainer holds, and what a launched run brings back."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drivetrain import __version__
from drivetrain.base.errors import CheckpointError
from drivetrain.base.rng import capture_rng, restore_rng
from drivetrain.base.tree import move_to
from drivetrain.callbacks.model_checkpoint import ModelCheckpoint
from drivetrain.checkpoint.manifest import read_manifest
from drivetrain.fabric.save import read_checkpoint
from drivetrain.fabric.saves import SaveHandle
from drivetrain.fabric.window_job import Carried
from drivetrain.loop.callback import Callback
from drivetrain.loop.left_over import LeftOver
from drivetrain.loop.metric_state import epoch_state, restore_epoch
from drivetrain.trainer.kept_window import keep_window, note_window
from drivetrain.trainer.opened_checkpoint import OpenedCheckpoint, let_hooks_save


@dataclass
class RunResult:
    """What comes out of a run in a rank.

    Attributes:
        value: What the trainer's method returns.
        weights: The module's state on the CPU; only where the run was in another process.
        trainer: Counters, metrics and callback states; likewise.
    """

    value: Any = None
    weights: dict[str, Tensor] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)


def plain_state(run: Any) -> dict[str, Any]:
    """Everything beside weights and optimizers, as plain data and tensors."""
    trainer, module = run.trainer, run.module
    state: dict[str, Any] = {
        "version": __version__,
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        **_loop_state(run),
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": callback_states(trainer.callbacks),
        "loggers": [logger.state_dict() for logger in trainer.loggers],
        "scaler": run.scaler_state(),
        "hyper_parameters": {**module.hparams},
        "data_seed": run.data_seed,
        "micro_batch_size": run.train_loader.finder.size if trainer.has_found_size else None,
        "has_carried": carried_state(run) is not None,
        "window": note_window(run),
        "datamodule": run.datamodule.state_dict() if run.datamodule is not None else {},
        "should_stop": trainer.was_preempted and trainer.should_stop,
    }
    return state


def _loop_state(run: Any) -> dict[str, Any]:
    """Counters, the values of the epoch so far, where the loaders are, and what of the last step is still to do.

    Ranks: all (one message).
    """
    trainer, loop = run.trainer, run.loop
    values = trainer.collectives.gather_objects(epoch_state(trainer.metrics, run.module))
    return {
        "progress": trainer.progress.state_dict() if loop is None else loop.at.saved_progress(trainer.progress),
        "left_over": None if loop is None else loop.left_over().state_dict(),
        "epoch_values": values[:: trainer.collectives.num_alike],
        "callback_metrics": dict(trainer.metrics.callback_metrics),
        "logged_metrics": dict(trainer.metrics.logged_metrics),
        "evaluation_loaders": [loader.state_dict() for loader in run.loaders],
    }


def _restore_loop(run: Any, saved: Mapping[str, Any], of_rank: Mapping[str, Any] | None) -> None:
    trainer = run.trainer
    trainer.progress.load_state_dict(saved["progress"])
    run.left_over = LeftOver.read(saved.get("left_over"))
    restore_epoch(trainer.metrics, saved.get("epoch_values", []), run.module)
    trainer.metrics.callback_metrics.update(saved.get("callback_metrics", {}))
    trainer.metrics.logged_metrics.update(saved.get("logged_metrics", {}))
    states = saved.get("evaluation_loaders", [])
    for loader, state in zip(run.loaders, states, strict=False):
        loader.load_state_dict(state)
    state = (of_rank or {}).get("loader")
    if state is None:
        return
    if state["num_ranks"] == run.fabric.world_size:
        run.train_loader.load_state_dict(state)
    elif state["own"] is not None:
        warnings.warn(
            f"The training loader's own state was saved on {state['num_ranks']} ranks, and is not used on "
            f"{run.fabric.world_size}.",
            stacklevel=2,
        )


def save(run: Any, path: str | Path, *, weights_only: bool = False, wait: bool = True) -> SaveHandle:
    """Write a checkpoint of a run.

    Ranks: all.
    """
    extra = {
        "epoch": run.trainer.current_epoch,
        "weights_only": weights_only,
        "monitored": monitored_values(run.trainer),
        "fit": run.fit_id,
        "lineage": run.lineage,
    }
    rng = run.loop.rng if run.loop is not None and run.trainer.was_preempted else None
    _say_inside_window(run)
    for logger in run.trainer.loggers:
        logger.save()  # a run that goes on from here finds all that was logged until here
    with ExitStack() as stack:
        for one in run.trainer.callbacks:
            stack.enter_context(one.saving(run.trainer, run.module))
        state, told = let_hooks_save(run, _trained_parts(run, weights_only=weights_only), plain_state(run))
        # Ranks that step apart scale apart.
        of_rank = {"rng": rng or capture_rng(), "scaler": run.scaler_state(), "carried": carried_state(run)}
        if run.train_loader is not None:
            of_rank["loader"] = {**run.train_loader.state_dict(), "num_ranks": run.fabric.world_size}
        handle: SaveHandle = run.fabric.saves.save(
            run.fabric.strategy, path, state, step=run.trainer.global_step, of_rank=of_rank, extra={**extra, **told},
            wait=wait,
        )  # fmt: skip
    return handle


def monitored_values(trainer: Any) -> dict[str, float]:
    """What checkpoints are ranked by, as far as it was reported."""
    names = [one.monitor for one in trainer.callbacks if isinstance(one, ModelCheckpoint) and one.monitor]
    return {name: float(trainer.callback_metrics[name]) for name in names if name in trainer.callback_metrics}


def load(run: Any, opened: OpenedCheckpoint, *, weights_only: bool) -> None:
    """Put a checkpoint back into a run.

    Ranks: all.

    Args:
        run: That goes on from it.
        opened: The checkpoint.
        weights_only: Leave out the optimizers.

    Raises:
        CheckpointError: It does not fit, or was saved without optimizers and training is to go on.
    """
    trainer, saved, directory, name = run.trainer, opened.plain, opened.directory, opened.name
    for hook in () if weights_only else run.hooks.on_before_load:
        hook(saved)
    parts = _trained_parts(run, weights_only=weights_only or not opened.takes_optimizers)
    _, of_rank = read_checkpoint(run.fabric.strategy, directory, opened.state_for(run, parts))
    if run.datamodule is not None and saved["datamodule"]:
        run.datamodule.load_state_dict(saved["datamodule"])
    if weights_only:  # callbacks keep what they have noted of the training
        return
    load_callback_states(trainer.callbacks, _with_shards(saved["callbacks"], directory))
    _say_untaken(trainer.callbacks, saved["callbacks"])
    run.make_loaders()
    _restore_loop(run, saved, of_rank)
    schedulers = trainer.lr_scheduler_configs if opened.takes_schedulers else []
    if len(saved["lr_schedulers"]) != len(schedulers):
        raise CheckpointError(
            f"{name} holds {len(saved['lr_schedulers'])} schedulers; the model has {len(schedulers)}.",
            code="checkpoint-keys",
            do="Configure the optimizers as they were when it was saved.",
        )
    for config, one in zip(schedulers, saved["lr_schedulers"], strict=True):
        config.scheduler.load_state_dict(one)
    run.load_scaler_state(of_rank["scaler"] if of_rank is not None else saved["scaler"])
    run.lineage = read_manifest(directory).extra.get("lineage", run.lineage)
    keep_window(run, saved.get("window"))
    run.data_seed = saved["data_seed"]
    trainer.should_stop = saved.get("should_stop", False)
    if trainer.has_found_size and saved.get("micro_batch_size") is not None:
        run.train_loader.finder.size = saved["micro_batch_size"]
    if len(saved["loggers"]) == len(trainer.loggers):
        for logger, one in zip(trainer.loggers, saved["loggers"], strict=True):
            logger.load_state_dict(one)
            # What was logged after the checkpoint will be logged again.
            logger.open(is_global_zero=run.fabric.is_global_zero, resume_step=trainer.global_step)
    if of_rank is not None:
        run.rng_to_restore = of_rank["rng"]
        run.carried_to_restore = of_rank.get("carried")
    elif saved.get("has_carried"):
        raise CheckpointError(
            f"{name} holds gradients of a window that was not full (remainder='carry'), a part for each of its ranks.",
            code="checkpoint-carried",
            do="Resume on as many ranks, or from a checkpoint between two windows.",
        )


def _say_inside_window(run: Any) -> None:
    """Say what a checkpoint from inside of a window cannot hold; not while an exception ends the run."""
    if run.loop is not None and run.loop.at.stage == "window" and sys.exc_info()[0] is None:
        warnings.warn(
            f"Saved inside of the window after step {run.trainer.global_step}: the run that goes on repeats its "
            "micro-batches, with the random state and batch statistics of now. Save in on_step_end.",
            stacklevel=4,
        )


def _say_untaken(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> None:
    keys = {key for key, _ in _keyed(callbacks)}
    for key in [key for key, state in states.items() if key not in keys and state.get("training")]:
        warnings.warn(
            f"{key} holds the weights that were trained, and is not among the callbacks: training goes on from the "
            "average.",
            stacklevel=2,
        )


def _with_shards(states: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The states of callbacks with whole tensors in the place of those that are saved in shards."""
    if not any(directory.glob("*.distcp")):
        return states
    from drivetrain.strategies.tensor_files import ShardReader  # only here: it takes a while to import

    shards = ShardReader(directory)
    whole: dict[str, Any] = shards.whole(states)
    shards.read()
    return whole


def carried_state(run: Any) -> dict[str, Any] | None:
    """This rank's part of a window that goes on in the next epoch; `None` without one."""
    job = run.job
    if job is None or job.carried is None:
        return None
    weight = job.carried.weight
    return {
        "num": job.carried.num,
        "nominal": job.carried.nominal,
        "weight": float(weight),
        "gradients": [None if p.grad is None else p.grad.detach().clone() for p in job.parameters],
    }


def restore_carried(run: Any) -> None:
    """Go on with a window that began before the checkpoint."""
    saved = run.carried_to_restore
    if saved is None:
        return
    run.job.carried = Carried(saved["num"], saved["nominal"], saved["weight"])
    for parameter, gradient in zip(run.job.parameters, saved["gradients"], strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device, parameter.dtype)


def _trained_parts(run: Any, *, weights_only: bool) -> dict[str, Any]:
    """The module and its optimizers, under the names that a checkpoint has for them."""
    optimizers = [] if weights_only else run.trainer.optimizers
    return {"model": run.prepared, **{f"optimizer_{index}": one for index, one in enumerate(optimizers)}}


def restore_run_rng(run: Any) -> None:
    """Restore the random state last, so that nothing before the first step draws from it."""
    if run.rng_to_restore is not None:
        restore_rng(run.rng_to_restore)
        run.rng_to_restore = None


def bring_back(run: Any, value: Any) -> RunResult:
    """What a run in another process sends to the one that launched it.

    Ranks: all.
    """
    trainer = run.trainer
    full = run.fabric.strategy.full_state({"model": run.prepared, "callbacks": callback_states(trainer.callbacks)})
    cpu = torch.device("cpu")
    return RunResult(
        value=move_to(value, cpu),
        weights=move_to(dict(full["model"]), cpu),
        trainer={
            "progress": trainer.progress.state_dict(),
            "callback_metrics": dict(trainer.callback_metrics),
            "logged_metrics": dict(trainer.logged_metrics),
            "callbacks": move_to(full["callbacks"], cpu),
            "time_spent": trainer.time_spent,
            "logger_versions": [logger.version for logger in trainer.loggers],
            "preempted": (trainer.preempted_by, trainer.preempted_checkpoint),
        },
    )


def take_back(trainer: Any, module: Any, result: RunResult) -> Any:
    """Put what a launched run brought back into the launching process; returns the run's value."""
    if result.weights is not None:
        module.load_state_dict(result.weights)
        state = result.trainer
        trainer.progress.load_state_dict(state["progress"])
        trainer.metrics.callback_metrics.update(state["callback_metrics"])
        trainer.metrics.logged_metrics.update(state["logged_metrics"])
        load_callback_states(trainer.callbacks, state["callbacks"])
        trainer.preempted_by, trainer.preempted_checkpoint = state["preempted"]
        trainer.time_spent = state["time_spent"]
        for logger, version in zip(trainer.loggers, state["logger_versions"], strict=True):
            logger.version = version
    return result.value


def callback_states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """The state of each callback that has any, under its key; the second of the same key has a number."""
    return {key: state for key, one in _keyed(callbacks) if (state := one.state_dict())}


def load_callback_states(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> None:
    """Restore what `callback_states` gave; a callback without a state stays as it is."""
    for key, one in _keyed(callbacks):
        if key in states:
            one.load_state_dict(states[key])


def _keyed(callbacks: Sequence[Callback]) -> list[tuple[str, Callback]]:
    seen: Counter[str] = Counter()
    keyed = []
    for one in callbacks:
        seen[one.state_key] += 1
        number = seen[one.state_key]
        keyed.append((one.state_key if number == 1 else f"{one.state_key}#{number}", one))
    return keyed
