"""Loaders of a run: sharded over ranks, and brought to the device."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import ConfigError, UnevenDataError
from drivetrain.base.tree import move_to
from drivetrain.data.combined_loader import CombinedBatches, CombinedLoader
from drivetrain.data.copies import Copies
from drivetrain.data.loader import Loader, part_seeds
from drivetrain.device.streams import CudaStreams
from drivetrain.fabric.batch_plan import plan_batch
from drivetrain.fabric.micro_batch_finder import MicroBatchFinder
from drivetrain.strategies.strategy import Strategy


def make_loader(
    source: Any,
    strategy: Strategy,
    *,
    seed: int,
    training: bool,
    is_moved: bool,
    is_sharded_here: bool,
    is_converted: bool = False,
    uneven: str = "join",
    global_batch_size: int | None = None,
    micro_batch_size: int | str | MicroBatchFinder | None = None,
    drops_last: bool = False,
) -> Loader:
    """Wrap a user's loader for this rank.

    Ranks: all.

    Args:
        source: The user's; it is not changed.
        strategy: Knows the shard and the device.
        seed: Of the data order; equal on all ranks.
        training: False for evaluation: each sample once, on some rank.
        is_moved: Bring batches to the device.
        is_sharded_here: False leaves the loader as it is.
        is_converted: Bring floating tensors of batches to the parameters' dtype.
        uneven: What different numbers of batches are; checked here as far as lengths are known.
        global_batch_size: Samples of one optimizer step on all ranks together; windows are made of it.
        micro_batch_size: Samples of a micro-batch at most, on each rank; `None` for the loader's own, `"auto"` for all.
        drops_last: Leave out a last global batch that is not full.

    Raises:
        DataError: It cannot be sharded, or is empty.
        UnevenDataError: Ranks hold different numbers of batches, and `uneven` is `"error"`.
    """
    running = strategy.running
    converts = is_converted and running.precision.parameter_dtype is not None
    moves = is_moved and running.device.type != "cpu"
    move = None
    if moves or converts:
        convert = running.precision.convert_input

        def move(batch: Any) -> Any:
            # Copies from pinned memory run beside the host; from other memory `non_blocking` changes nothing.
            batch = move_to(batch, running.device, non_blocking=True) if moves else batch
            return convert(batch) if converts else batch

    shard, batch = strategy.data_shard(), None
    is_found = isinstance(micro_batch_size, MicroBatchFinder)
    if global_batch_size is not None:
        size: Any = "auto" if is_found else micro_batch_size
        batch = plan_batch(source, global_batch_size=global_batch_size, micro_batch_size=size, num_shards=shard.count)
    elif micro_batch_size is not None:
        raise ConfigError(
            f"micro_batch_size={micro_batch_size!r} was given without global_batch_size.",
            code="batch-split",
            do="Give both; or set the loader's batch_size and accumulate.",
        )
    pins = moves and running.device.type == "cuda"
    if isinstance(source, CombinedLoader):
        seeds = part_seeds(seed, len(source.flattened))
        parts = [
            Loader(one, shard, seed=own_seed, training=training, hands_off=not is_sharded_here, pins=pins)
            for one, own_seed in zip(source.flattened, seeds, strict=True)
        ]
        source, is_sharded_here = CombinedBatches(source, parts), False
    loader = Loader(
        source,
        shard,
        seed=seed,
        training=training,
        move=move,
        hands_off=not is_sharded_here,
        pins=pins,
        global_batch=batch if batch is not None and batch.is_cut else None,
        drops_last=drops_last,
    )
    if pins:
        loader.copies = Copies(CudaStreams(running.device))
    loader.plan = batch
    loader.finder = MicroBatchFinder() if micro_batch_size == "auto" else micro_batch_size if is_found else None
    if training and strategy.collectives.world_size > 1:
        _check_even(loader, strategy, uneven)
    return loader


def _check_even(loader: Loader, strategy: Strategy, uneven: str) -> None:
    collectives = strategy.collectives
    told = collectives.gather_objects((loader.num_rounds, loader.num_samples, loader.num_batches))
    is_sharded = all(one[0] is not None for one in told)
    counts = [one[1] for one in told] if is_sharded else [one[2] for one in told]
    loader.is_even = len(set(counts)) == 1 and None not in counts
    if loader.is_even or None in counts or (uneven != "error" and not is_sharded):
        return
    rank = next(rank for rank, count in enumerate(counts) if count != counts[0])
    unit = "samples" if is_sharded else "batches"
    raise UnevenDataError(
        f"Rank {rank} holds {counts[rank]} {unit}; rank 0 has {counts[0]}.",
        code="uneven",
        do="Give all ranks the same data set; or, where loaders shard themselves, the same number of batches, or "
        "choose uneven='join' (every sample counts once) or 'stop'.",
        rank=(collectives.rank, collectives.world_size),
    )
