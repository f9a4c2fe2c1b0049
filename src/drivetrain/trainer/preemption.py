"""The end of a run that was told to end: one checkpoint, written by all ranks between two optimizer steps."""

from __future__ import annotations

from typing import Any

from drivetrain.base.locations import join, locate
from drivetrain.checkpoint.remote import remove
from drivetrain.launch.stop_signals import InterruptedExit, PreemptedExit
from drivetrain.trainer import trainer_state

PREFIX = "preempted-step="


def save_preempted(run: Any) -> None:
    """Save the state of a run, and note in its trainer why and where.

    A save that is being written beside training ends first. Then this one is waited for. It goes into the directory of
    the first `ModelCheckpoint`, which deletes it in its turn; else into the trainer's `default_root_dir`, where it
    replaces the one that the run has gone on from.

    Ranks: all.

    Raises:
        CheckpointError: On every rank, if any rank cannot write.
    """
    trainer, collectives = run.trainer, run.fabric.collectives
    run.fabric.stop_signals.has_ended = True
    received = run.fabric.stop_signals.received
    told = collectives.gather_objects((received.name if received is not None else None, trainer.should_stop))
    by_rank = {rank: name for rank, (name, _) in enumerate(told) if name is not None}
    names = sorted(set(by_rank.values()), key=lambda name: name == "SIGINT")  # a person is there only if all say so
    trainer.preempted_by = names[0]
    trainer.should_stop = any(wants_stop for _, wants_stop in told)  # kept for the run that goes on
    if not trainer.fast_dev_run:
        trainer.preempted_checkpoint = _save(run)
    if trainer.is_global_zero:
        on = "" if len(told) == 1 else f" on rank {', '.join(map(str, by_rank))}"
        saved = f"saved {trainer.preempted_checkpoint}" if trainer.preempted_checkpoint else "nothing is saved"
        print(f"Step {trainer.global_step}: {' and '.join(names)}{on}; {saved}", flush=True)


def _save(run: Any) -> str:
    trainer, name = run.trainer, f"{PREFIX}{run.trainer.global_step}"
    run.fabric.saves.end()
    for keeper in trainer.checkpoint_callbacks:
        if hasattr(keeper, "save_whole"):
            path: str = keeper.save_whole(trainer, name)
            return path
    root = run.fabric.broadcast(locate(trainer.default_root_dir))
    final, former = join(root, f"{name}.ckpt"), run.resumed_from
    trainer_state.save(run, final)
    if trainer.is_global_zero and former.startswith(join(root, PREFIX)) and former != final:
        remove(former)
    return final


def make_exit(trainer: Any) -> PreemptedExit:
    """What a run that was told to end raises at its end."""
    kind = InterruptedExit if trainer.preempted_by == "SIGINT" else PreemptedExit
    return kind(trainer.preempted_by, trainer.preempted_checkpoint)
