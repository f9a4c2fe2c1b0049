"""A user's loader for one rank: a shallow copy of their own object with another batch sampler."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from drivetrain.base.errors import DataError
from drivetrain.data.batches import DealtBatches, SampleBatches, ShardedBatches, is_plain
from drivetrain.data.data_shard import DataShard


def shard_loader(loader: DataLoader[Any], shard: DataShard, *, seed: int, pins: bool = False) -> DataLoader[Any]:
    """A loader of this rank's share.

    The user's object is copied, never built again and never changed: subclasses with any constructor work. Loaders
    that shard themselves (a `DistributedSampler`, an iterable data set that says `shards_itself = True`) come back
    as they are.

    Args:
        loader: The user's.
        shard: Which rank, of how many.
        seed: Of the data order; equal on all ranks.
        pins: Batches are put into pinned memory, from where a device copies beside the host.

    Raises:
        DataError: An iterable data set on several ranks that does not say that it shards itself, or nothing in it.
    """
    if isinstance(loader.dataset, IterableDataset):
        _check_iterable(loader, shard)
        return loader
    if isinstance(loader.sampler, DistributedSampler) or _inner_sampler_shards(loader):
        return loader
    batches = _batches_of(loader, shard, seed)
    if batches.num_rounds == 0:
        raise DataError(
            f"The loader of {type(loader.dataset).__name__} holds no batch ({_length(loader.dataset)} samples, "
            f"batch_size={loader.batch_size}, drop_last={loader.drop_last}, {shard.count} ranks).",
            code="no-batches",
            do="Give it samples; with drop_last=True at least batch_size x ranks of them.",
        )
    sharded = copy.copy(loader)
    # DataLoader guards these names once it is built; the copy is ours, and both are read at each `iter`.
    sharded.__dict__["batch_sampler" if loader.batch_sampler is not None else "sampler"] = (
        batches if loader.batch_sampler is not None else _Single(batches)
    )
    sharded.__dict__["_iterator"] = None
    sharded.pin_memory = sharded.pin_memory or pins
    return sharded


class _Single:
    """Indices instead of batches, for a loader with `batch_size=None`."""

    def __init__(self, batches: ShardedBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return (batch[0] for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def batches_of(loader: Any) -> ShardedBatches | None:
    """The batches that `shard_loader` put into a loader, if it did."""
    own = getattr(loader, "batch_sampler", None)
    own = own if own is not None else getattr(getattr(loader, "sampler", None), "batches", None)
    return own if isinstance(own, ShardedBatches) else None


def _batches_of(loader: DataLoader[Any], shard: DataShard, seed: int) -> ShardedBatches:
    if loader.batch_sampler is not None and not is_plain(loader.batch_sampler):
        return DealtBatches(loader.batch_sampler, shard=shard, seed=seed)
    sampler = loader.sampler
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    is_own = not is_shuffled and type(sampler) is not SequentialSampler
    generator = getattr(sampler, "generator", None)
    return SampleBatches(
        len(sampler) if is_own else len(loader.dataset),  # type: ignore[arg-type]
        batch_size=loader.batch_size if loader.batch_size is not None else 1,
        shard=shard,
        seed=generator.initial_seed() if is_shuffled and isinstance(generator, torch.Generator) else seed,
        sampler=sampler if is_own else None,
        is_shuffled=is_shuffled,
        drops_last=loader.drop_last,
    )


def _check_iterable(loader: DataLoader[Any], shard: DataShard) -> None:
    kind = type(loader.dataset).__name__
    if shard.count > 1 and not (
        getattr(loader.dataset, "shards_itself", False) or getattr(loader, "shards_itself", False)
    ):
        raise DataError(
            f"{kind} is iterable, so that it cannot be sharded over {shard.count} ranks from outside: each rank would "
            "train on all of it.",
            code="iterable-not-sharded",
            do="Let its __iter__ give each rank its own share, and say so with `shards_itself = True` on the data set; "
            "or pass use_distributed_sampler=False.",
        )


def _inner_sampler_shards(loader: DataLoader[Any]) -> bool:
    return isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler)


def _length(dataset: Any) -> int | str:
    try:
        return len(dataset)
    except TypeError:
        return "an unknown number of"
