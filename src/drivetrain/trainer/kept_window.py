"""The samples of an optimizer step stay the same where a run goes on with another number of ranks.

A window of `accumulate_grad_batches=3` micro-batches of 4 samples on 2 ranks is a step of 24 samples. On other ranks
the same arguments would make another step of it, and so another training: the window is cut anew from those 24 samples.
Where the arguments were changed as well, they are what the user wants, and hold.
"""

from __future__ import annotations

import warnings
from typing import Any

from drivetrain.data.shard_loader import can_cut


def note_window(run: Any) -> dict[str, Any] | None:
    """What a checkpoint says of the windows of its run: what was asked for, and on how many ranks it was made of it.

    `None` where a step is a global batch, or windows change, or there are none that all ranks step on together.
    """
    if run.kept_window is not None:
        kept: dict[str, Any] = run.kept_window
        return kept
    sizes, loader, strategy = run.trainer.window_sizes.sizes, run.train_loader, run.fabric.strategy
    is_noted = run.trainer.global_batch_size is None and isinstance(sizes, int) and run.module.automatic_optimization
    if loader is None or not is_noted or strategy.traits.steps_apart:
        return None
    return {"accumulate": sizes, "batch_size": loader.batch_size, "num_shards": strategy.data_shard().count}


def keep_window(run: Any, noted: dict[str, Any] | None) -> None:
    """Cut windows from as many samples as before, if the same arguments would make others of them on these ranks.

    Ranks: all.

    Args:
        run: That goes on from a checkpoint.
        noted: What `note_window` gave when it was saved.
    """
    now = note_window(run)
    if noted is None or now is None or noted["num_shards"] == now["num_shards"]:
        return
    if (noted["accumulate"], noted["batch_size"]) != (now["accumulate"], now["batch_size"]):
        return  # chosen anew
    trainer, loader = run.trainer, run.train_loader
    if can_cut(loader.source) and trainer.remainder == "step" and trainer.use_distributed_sampler:
        run.kept_window = noted
        samples = noted["accumulate"] * noted["batch_size"] * noted["num_shards"]
        run.train_loader = run.training_loader(loader.source, samples, loader.batch_size)
    elif run.fabric.is_global_zero:
        warnings.warn(
            f"A window was {noted['accumulate']} micro-batches on each of {noted['num_shards']} ranks when the "
            f"checkpoint was saved; on {now['num_shards']} it is another optimizer step. These windows cannot be cut "
            "anew: change accumulate_grad_batches or the batch size, so that the step stays the same.",
            stacklevel=2,
        )
