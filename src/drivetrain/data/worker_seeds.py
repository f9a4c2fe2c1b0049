"""Random state in worker processes: a pure function of seed, epoch and position of a sample.

A batch of indices carries the position of its first sample to the worker that reads it. There the random state is
seeded anew for each sample, so that augmentation is the same after a resume, with another number of workers and on
another number of ranks. The random state of the rank's own process is never touched.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from drivetrain.base.rng import mix_seed
from drivetrain.data.data_shard import DataShard
from drivetrain.data.order import tell_parts
from drivetrain.data.worker_signals import leave_signals_to_rank


class Place(NamedTuple):
    """Where a batch is in a run.

    Attributes:
        seed: Of the run.
        epoch: Which one.
        position: Samples of the epoch before the batch, on all ranks together.
        told_epoch: The epoch that the data set was told last; `None` before the first.
    """

    seed: int
    epoch: int
    position: int
    told_epoch: int | None


class SeededBatch(list[Any]):
    """Indices of a batch, with where they are in the run."""

    place: Place

    def __init__(self, indices: Iterable[Any], *, place: Place) -> None:
        super().__init__(indices)
        self.place = place


class SeededDataset(Dataset[Any]):
    """A user's data set, as workers read it. Anything else is answered by the user's own."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._has_begun = False
        self._told_epoch: int | None = None
        self._fetches_batches = hasattr(_innermost(dataset), "__getitems__")

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, SeededBatch):
            return self.dataset[index]
        self._begin(index)
        return self.dataset[index[0]]

    def __getitems__(self, batch: list[Any]) -> Any:
        if self._fetches_batches:
            self._begin(batch)
            return self.dataset.__getitems__(list(batch))
        if not self._begin(batch):
            return [self.dataset[index] for index in batch]
        samples, (seed, epoch, position, _) = [], batch.place  # type: ignore[attr-defined]
        for offset, index in enumerate(batch):
            if offset:
                seed_process(mix_seed(seed, epoch, position + offset))
            samples.append(self.dataset[index])
        return samples

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if "dataset" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _begin(self, batch: list[Any]) -> bool:
        """Seed for the first sample of a batch, in a worker; one that stays over epochs hears of the new one."""
        if not isinstance(batch, SeededBatch) or not _is_worker_process():
            return False
        seed, epoch, position, told_epoch = batch.place
        if told_epoch != self._told_epoch:
            # What was told before the worker was started, its copy knows.
            if self._has_begun and told_epoch is not None:
                tell_parts(self.dataset, told_epoch)
            self._told_epoch = told_epoch
        self._has_begun = True
        seed_process(mix_seed(seed, epoch, position))
        return True


class SeededStream(IterableDataset[Any]):
    """A user's iterable data set in workers that stay over epochs. Anything else is answered by the user's own.

    Such workers go on with the random state that the epoch before has left, which no resume could find again.

    Args:
        dataset: The user's.
        seed: Of the rank.
    """

    def __init__(self, dataset: Any, *, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch = self._num_begun = 0
        self._is_told = False

    def begin(self, epoch: int, *, is_told: bool) -> None:
        """Say which epoch the workers that are started next begin with, and whether the data set was told of it."""
        self._epoch, self._is_told = epoch, is_told

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch + self._num_begun
        if _is_worker_process():
            info = get_worker_info()
            assert info is not None
            if self._is_told and self._num_begun:
                tell_parts(self.dataset, epoch)
            seed_process(mix_seed(self._seed, epoch, info.id))
            self._num_begun += 1
        return iter(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if "dataset" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class WorkerStart:
    """What a worker does first: no two ranks start alike, user code finds its own data set, and signals are the rank's.

    Args:
        init_fn: The user's `worker_init_fn`.
        shard: Which rank, of how many.
    """

    def __init__(self, init_fn: Callable[[int], Any] | None, shard: DataShard) -> None:
        self.init_fn = init_fn
        self.shard = shard

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        if _is_worker_process():
            leave_signals_to_rank()
        # torch guards the fields of its note against assignment; the loader itself does not read them again.
        if isinstance(info.dataset, (SeededDataset, SeededStream)):
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.shard.count > 1 and _is_worker_process():
            # Ranks that were seeded alike draw the same base seed.
            seed = mix_seed(info.seed, self.shard.index)
            object.__setattr__(info, "seed", seed)
            seed_process(seed)
        if self.init_fn is not None:
            self.init_fn(worker_id)


def seed_process(seed: int) -> None:
    """Seed Python, torch on the CPU, and NumPy where it is loaded."""
    random.seed(seed)
    # `torch.manual_seed` would note the seed for devices too, for which a worker has no use, at each call.
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _is_worker_process() -> bool:
    """Not a thread, whose random state is that of the rank."""
    info = get_worker_info()
    return info is not None and getattr(info, "worker_method", "multiprocessing") != "thread"


def _innermost(dataset: Any) -> Any:
    """What `Subset`s are taken from: they pass whole batches on only if it takes them."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset
