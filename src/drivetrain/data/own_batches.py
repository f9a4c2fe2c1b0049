"""Batches of loaders that shard themselves: left as they are, but from any of them on."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from drivetrain.base.rng import mix_seed
from drivetrain.data.data_shard import DataShard
from drivetrain.data.worker_seeds import Place, SeededBatch, SeededDataset, WorkerStart


class OwnBatches:
    """What a user's own batch sampler gives, or their sampler where the loader makes no batches.

    Args:
        given: The sampler.
        seed: Of the run; each rank has one of its own.
        carries_seeds: Batches tell the workers that read them where they are.
        makes_batches: It is a batch sampler.

    Attributes:
        epoch: The epoch that the next iteration gives.
        told_epoch: The epoch that the data set was told last; `None` before the first.
        first: With which batch the next iteration begins; the one after it begins at the beginning.
    """

    def __init__(self, given: Iterable[Any], *, seed: int, carries_seeds: bool, makes_batches: bool) -> None:
        self.given = given
        self.seed = seed
        self.epoch = 0
        self.told_epoch: int | None = None
        self.first = 0
        self._carries_seeds = carries_seeds
        self._makes_batches = makes_batches

    def __iter__(self) -> Iterator[Any]:
        first, self.first = self.first, 0
        position = 0
        for number, batch in enumerate(self.given):
            if number >= first:
                yield self._packed(batch, position) if self._carries_seeds else batch
            position += len(batch) if isinstance(batch, (list, tuple)) else 1

    def _packed(self, batch: Any, position: int) -> SeededBatch:
        place = Place(self.seed, self.epoch, position, self.told_epoch)
        return SeededBatch(batch if self._makes_batches else [batch], place=place)

    def __len__(self) -> int:
        return len(self.given)  # type: ignore[arg-type]


def with_own_batches(
    loader: DataLoader[Any], shard: DataShard, *, seed: int, carries_seeds: bool
) -> tuple[DataLoader[Any], OwnBatches]:
    """A shallow copy of a loader over a map-style data set that can begin with any batch; the user's is not changed."""
    makes_batches = loader.batch_sampler is not None
    given: Any = loader.batch_sampler if makes_batches else loader.sampler
    batches = OwnBatches(
        given, seed=mix_seed(seed, shard.index), carries_seeds=carries_seeds, makes_batches=makes_batches
    )
    copied = copy.copy(loader)
    own = copied.__dict__
    own["batch_sampler" if makes_batches else "sampler"] = batches
    own["_iterator"] = None
    if carries_seeds:
        own["dataset"] = SeededDataset(loader.dataset)
        own["worker_init_fn"] = WorkerStart(loader.worker_init_fn, shard)
    return copied, batches


def can_begin_anywhere(loader: Any) -> bool:
    """A loader whose batches can be left out without reading them, and without changing those that follow.

    Workers draw random numbers batch after batch, so they have to read all of them.
    """
    is_map_style = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    return is_map_style and loader.num_workers == 0
