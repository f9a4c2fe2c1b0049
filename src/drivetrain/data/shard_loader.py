"""A user's loader for one rank: a shallow copy of their own object with another batch sampler."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from drivetrain.base.errors import DataError
from drivetrain.base.rng import mix_seed
from drivetrain.data.batches import DealtBatches, SampleBatches, ShardedBatches, is_plain
from drivetrain.data.data_shard import DataShard
from drivetrain.data.global_batches import GlobalBatch, GlobalBatches
from drivetrain.data.order import length_of
from drivetrain.data.own_batches import OwnBatches, with_own_batches
from drivetrain.data.replay import has_lasting_workers, stateful_part
from drivetrain.data.worker_seeds import SeededBatch, SeededDataset, SeededStream, WorkerStart


def shard_loader(
    loader: DataLoader[Any],
    shard: DataShard,
    *,
    seed: int,
    pins: bool = False,
    global_batch: GlobalBatch | None = None,
    drops_last: bool = False,
) -> DataLoader[Any]:
    """A loader of this rank's share.

    The user's object is copied, never built again and never changed: subclasses with any constructor work. Loaders
    that shard themselves (a `DistributedSampler`, an iterable data set that says `shards_itself = True`) give the
    batches that they would give.

    Args:
        loader: The user's.
        shard: Which rank, of how many.
        seed: Of the data order; equal on all ranks.
        pins: Batches are put into pinned memory, from where a device copies beside the host.
        global_batch: Cut batches from it, instead of those of the loader's own size.
        drops_last: Leave out a last global batch that is not full.

    Raises:
        DataError: An iterable data set on several ranks that does not say that it shards itself, or nothing in it.
    """
    if isinstance(loader.dataset, IterableDataset):
        _check_iterable(loader, shard)
        return _seeded_stream(loader, shard, seed) if has_lasting_workers(loader) else loader
    if _shards_itself(loader.sampler) or _shards_itself(loader.batch_sampler):
        return with_own_batches(loader, shard, seed=seed, carries_seeds=loader.num_workers > 0)[0]
    batches = _batches_of(loader, shard, seed, global_batch, drops_last=drops_last)
    if batches.num_rounds == 0:
        length = length_of(loader.dataset)
        raise DataError(
            f"The loader of {type(loader.dataset).__name__} holds no batch "
            f"({'an unknown number of' if length is None else length} samples, batch_size={loader.batch_size}, "
            f"drop_last={loader.drop_last}, {shard.count} ranks).",
            code="no-batches",
            do="Give it samples; with drop_last=True at least batch_size x ranks of them.",
        )
    sharded = copy.copy(loader)
    # DataLoader guards these names once it is built; the copy is ours, and they are read at each `iter`.
    own = sharded.__dict__
    own["batch_sampler" if loader.batch_sampler is not None else "sampler"] = (
        batches if loader.batch_sampler is not None else _Items(batches, is_bulk=_is_bulk(loader))
    )
    own["_iterator"] = None
    if loader.num_workers > 0:
        batches.carries_seeds = True
        own["dataset"] = SeededDataset(loader.dataset)
        own["worker_init_fn"] = WorkerStart(loader.worker_init_fn, shard)
    sharded.pin_memory = sharded.pin_memory or pins
    return sharded


class _Items:
    """What a loader with `batch_size=None` asks its data set for: an index, or a list of them (`is_bulk`)."""

    def __init__(self, batches: ShardedBatches, *, is_bulk: bool) -> None:
        self.batches = batches
        self.is_bulk = is_bulk

    def __iter__(self) -> Iterator[Any]:
        return map(self._item, iter(self.batches))

    def _item(self, batch: list[Any]) -> Any:
        item = list(batch) if self.is_bulk else batch[0]
        if isinstance(batch, SeededBatch):
            return SeededBatch([item], place=batch.place)
        return item

    def __len__(self) -> int:
        return len(self.batches)


def batches_of(loader: Any) -> ShardedBatches | None:
    """The batches that `shard_loader` put into a loader, if it did."""
    for own in (getattr(loader, "batch_sampler", None), getattr(getattr(loader, "sampler", None), "batches", None)):
        if isinstance(own, ShardedBatches):
            return own
    return None


def own_batches_of(loader: Any) -> OwnBatches | None:
    """The batches of a loader that shards itself, as `shard_loader` put them into its copy."""
    for own in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        if isinstance(own, OwnBatches):
            return own
    return None


def _seeded_stream(loader: DataLoader[Any], shard: DataShard, seed: int) -> DataLoader[Any]:
    """Workers that stay begin each epoch with a random state of its own, as those that are started anew do."""
    if stateful_part(loader) is not None:
        return loader
    copied = copy.copy(loader)
    own = copied.__dict__
    own["dataset"] = SeededStream(loader.dataset, seed=mix_seed(seed, shard.index))
    own["worker_init_fn"] = WorkerStart(loader.worker_init_fn, shard)
    own["_iterator"] = None
    return copied


def can_cut(loader: Any) -> bool:
    """Batches of any size can be cut from the loader's order of samples: it has no other way to make them."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    return is_plain(loader.batch_sampler) and not _shards_itself(loader.sampler)


def _batches_of(
    loader: DataLoader[Any], shard: DataShard, seed: int, global_batch: GlobalBatch | None, *, drops_last: bool
) -> ShardedBatches:
    # With `batch_size=None` the sampler may give whole batches; a batch sampler has its own batch size and sampler,
    # while the loader that it was passed to says `batch_size=None` and has a sampler that it does not use.
    whole: Any = loader.batch_sampler
    if whole is None and _is_bulk(loader):
        whole = loader.sampler
    if whole is not None and not is_plain(whole):
        return DealtBatches(whole, shard=shard, seed=seed)
    sampler = loader.sampler if whole is None else whole.sampler
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    is_own = not is_shuffled and type(sampler) is not SequentialSampler
    generator = getattr(sampler, "generator", None)
    options: dict[str, Any] = {
        "shard": shard,
        "seed": generator.initial_seed() if is_shuffled and isinstance(generator, torch.Generator) else seed,
        "sampler": sampler if is_own else None,
        "is_shuffled": is_shuffled,
        "drops_last": drops_last if whole is None else whole.drop_last or drops_last,
    }
    num_samples = None if is_own else length_of(sampler)
    if global_batch is not None:
        return GlobalBatches(global_batch, num_samples, **options)
    return SampleBatches(num_samples, batch_size=1 if whole is None else whole.batch_size, **options)


def _is_bulk(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is None and isinstance(loader.sampler, BatchSampler)


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


def _shards_itself(sampler: Any) -> bool:
    return isinstance(sampler, DistributedSampler) or isinstance(getattr(sampler, "sampler", None), DistributedSampler)
