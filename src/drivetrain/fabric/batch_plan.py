"""From the batch that the user thinks in, the global one, to the micro-batches of each rank."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.data.global_batches import GlobalBatch
from drivetrain.data.loader import Loader
from drivetrain.data.shard_loader import can_cut
from drivetrain.fabric.window_job import WindowJob


def plan_batch(
    loader: Any, *, global_batch_size: int, micro_batch_size: int | str | None, num_shards: int
) -> GlobalBatch:
    """How the samples of one optimizer step are cut, or made up of the loader's own batches.

    Args:
        loader: The user's.
        global_batch_size: Samples of one optimizer step on all ranks together.
        micro_batch_size: Samples of a micro-batch at most, on each rank; `None` for the loader's batch size; `"auto"`
            for as many as fit.
        num_shards: Ranks that read data of their own.

    Raises:
        ConfigError: A size is not a number, or the loader's own batches do not make up the global one.
    """
    for name, value in (("global_batch_size", global_batch_size), ("micro_batch_size", micro_batch_size)):
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not (is_count or (name == "micro_batch_size" and value in (None, "auto"))):
            raise ConfigError(f"{name}={value!r} is not a number of samples.", code="batch-size", do="Use 1 or more.")
    own = getattr(loader, "batch_size", None)
    if micro_batch_size is None or micro_batch_size == own:
        if own is not None and global_batch_size % (own * num_shards) == 0:
            return GlobalBatch(global_batch_size, num_shards, own, is_cut=False)
        if micro_batch_size is None:
            raise _does_not_split(global_batch_size, own, num_shards)
    if not can_cut(loader):
        raise ConfigError(
            f"micro_batch_size={micro_batch_size!r}, but the batches of this {type(loader).__name__} cannot be cut "
            "anew: it makes them itself.",
            code="batch-split",
            do="Leave micro_batch_size out and give the loader its batch_size, or pass a DataLoader over a map-style "
            "data set.",
        )
    share = -(-global_batch_size // num_shards)
    size = share if micro_batch_size == "auto" else min(int(micro_batch_size), share)
    return GlobalBatch(global_batch_size, num_shards, size)


def say_plan(loader: Loader, job: WindowJob) -> None:
    """Print the plan of a loader in one line, on rank 0 and once."""
    batch, is_said = loader.plan, loader.plan_is_said
    loader.plan_is_said = True
    if batch is not None and not is_said and job.collectives.is_global_zero:
        print(describe_plan(batch, job))


def describe_plan(batch: GlobalBatch, job: WindowJob) -> str:
    """The plan in one line: `512 = 4 ranks x 16 x 8 micro-batches; 1 sync of 28.4 MB per step`."""
    ranks = f"{batch.num_shards} rank{'s' if batch.num_shards > 1 else ''}"
    sizes = {part for size in batch.rounds() for part in (size // batch.num_shards, -(-size // batch.num_shards))}
    least, most = min(sizes), max(sizes)
    num = batch.num_rounds
    cut = f"{most if least == most else f'{least} to {most}'} x {num} micro-batch{'es' if num > 1 else ''}"
    text = f"{batch.samples} {'=' if least == most else 'over'} {ranks} x {cut}"
    if job.finder is not None:
        text += ", split further where memory asks for it"
    if job.num_averaged == 1:
        return f"{text}; nothing to sync"
    size = sum(p.numel() * p.element_size() for p in job.parameters if p.requires_grad)
    return f"{text}; 1 sync of {size / 1e6:.3g} MB per step"


def _does_not_split(global_batch_size: int, batch_size: int | None, num_shards: int) -> ConfigError:
    if batch_size is None:
        return ConfigError(
            f"global_batch_size={global_batch_size} cannot be split: the loader has no batch_size.",
            code="batch-split",
            do="Give the loader a batch_size, or use accumulate_grad_batches.",
        )
    unit = batch_size * num_shards
    below, above = global_batch_size // unit * unit, (global_batch_size // unit + 1) * unit
    nearest = f"{below} or {above}" if below else str(above)
    return ConfigError(
        f"global_batch_size={global_batch_size} cannot be split into micro-batches of {batch_size} on {num_shards} "
        f"rank{'s' if num_shards > 1 else ''}.",
        code="batch-split",
        do=f"It must be a multiple of {unit}. Use {nearest}; or give micro_batch_size, a maximum that fits any number.",
    )
