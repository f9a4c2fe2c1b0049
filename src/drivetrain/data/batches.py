"""Which samples a rank gets, in which micro-batch.

All ranks together take the samples of an epoch in order: round i is the next `batch_size x ranks` of them, and rank r
has the r-th part of it. So an accumulation window of K rounds holds the same samples however ranks and micro-batches
cut it. The last round is split as evenly as its samples allow; a rank may have none in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, Sampler

from drivetrain.data.data_shard import DataShard
from drivetrain.data.order import drawn_order, epoch_order, tell_epoch


class ShardedBatches(Sampler[list[Any]], ABC):
    """A batch sampler for one rank.

    Attributes:
        shard: Which rank, of how many.
        epoch: The epoch that the next iteration gives.
        num_samples: Samples of an epoch on all ranks together.
        num_rounds: Micro-batches of an epoch, on the rank that has most.
        num_full_rounds: Rounds at the beginning of an epoch in which every rank has `batch_size` samples.
    """

    shard: DataShard
    epoch: int
    num_samples: int | None
    num_rounds: int
    num_full_rounds: int = 0

    @abstractmethod
    def __iter__(self) -> Iterator[list[Any]]:
        """This rank's batches of indices, from the position on."""

    @abstractmethod
    def __len__(self) -> int:
        """This rank's batches of a whole epoch."""

    @abstractmethod
    def round_size(self, index: int) -> int | None:
        """Samples of all ranks in a round, counted from the beginning of the epoch."""

    @abstractmethod
    def local_size(self, index: int) -> int | None:
        """This rank's samples in a round."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""

    @abstractmethod
    def set_position(self, num_samples: int) -> None:
        """Let the next iteration begin after so many samples of the epoch, on all ranks together. None is read."""


class SampleBatches(ShardedBatches):
    """Batches cut from an order of samples.

    Args:
        num_samples: Samples of the data set.
        batch_size: Of a micro-batch, on each rank.
        shard: Which rank, of how many.
        seed: Of the run.
        sampler: The user's own; by default the samples as they are, or shuffled.
        is_shuffled: Without a sampler: shuffle.
        drops_last: Leave out the last round if it is not full.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        shard: DataShard,
        seed: int,
        sampler: Iterable[Any] | None = None,
        is_shuffled: bool = False,
        drops_last: bool = False,
    ) -> None:
        self._num_all = num_samples
        self.num_samples: int = num_samples
        self.batch_size = batch_size
        self.shard = shard
        self.seed = seed
        self.sampler = sampler
        self.is_shuffled = is_shuffled
        self.drops_last = drops_last
        self.epoch = 0
        self._position = 0
        self.round_samples = batch_size * shard.count
        if drops_last:
            self.num_samples -= num_samples % self.round_samples
        self.num_rounds = -(-self.num_samples // self.round_samples)
        self.num_full_rounds = self.num_samples // self.round_samples

    def order(self) -> Sequence[Any]:
        """The samples of the epoch, for all ranks."""
        if self.sampler is not None:
            return drawn_order(self.sampler, seed=self.seed, epoch=self.epoch)
        return epoch_order(self._num_all, seed=self.seed, epoch=self.epoch, is_shuffled=self.is_shuffled)

    def __iter__(self) -> Iterator[list[Any]]:
        position, self._position = self._position, 0
        order = self.order()
        for start in range(position, self.num_samples, self.round_samples):
            size = min(self.round_samples, self.num_samples - start)
            first, last = _share(size, self.batch_size, self.shard)
            if last > first:
                yield list(order[start + first : start + last])

    def __len__(self) -> int:
        if self.num_rounds and self.local_size(self.num_rounds - 1) == 0:
            return self.num_rounds - 1
        return self.num_rounds

    def round_size(self, index: int) -> int:
        return min(self.round_samples, self.num_samples - index * self.round_samples)

    def local_size(self, index: int) -> int:
        left = self.num_samples - index * self.round_samples
        if left >= self.round_samples:
            return self.batch_size
        first, last = _share(left, self.batch_size, self.shard)
        return last - first

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._position = 0

    def set_position(self, num_samples: int) -> None:
        self._position = num_samples


class DealtBatches(ShardedBatches):
    """A user's own batch sampler, whose batches are dealt out to the ranks in turn."""

    def __init__(self, batch_sampler: Any, *, shard: DataShard, seed: int) -> None:
        self.batch_sampler = batch_sampler
        self.shard = shard
        self.seed = seed
        self.epoch = 0
        self._position = 0
        self._drawn: tuple[int, list[list[Any]]] | None = None
        self.num_samples = None

    def _batches(self) -> list[list[Any]]:
        if self._drawn is None or self._drawn[0] != self.epoch:
            self._drawn = (
                self.epoch,
                [list(b) for b in drawn_order(self.batch_sampler, seed=self.seed, epoch=self.epoch)],
            )
        return self._drawn[1]

    @property
    def num_rounds(self) -> int:  # type: ignore[override]
        return -(-len(self._batches()) // self.shard.count)

    def __iter__(self) -> Iterator[list[Any]]:
        position, self._position = self._position, 0
        batches = self._batches()
        done = 0
        for index, batch in enumerate(batches):
            if done >= position and index % self.shard.count == self.shard.index:
                yield batch
            done += len(batch)

    def __len__(self) -> int:
        return len(range(self.shard.index, len(self._batches()), self.shard.count))

    def round_size(self, index: int) -> int:
        count = self.shard.count
        return sum(len(batch) for batch in self._batches()[index * count : (index + 1) * count])

    def local_size(self, index: int) -> int:
        batches = self._batches()
        place = index * self.shard.count + self.shard.index
        return len(batches[place]) if place < len(batches) else 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._position = 0
        tell_epoch(self.batch_sampler, epoch)
        tell_epoch(getattr(self.batch_sampler, "sampler", None), epoch)

    def set_position(self, num_samples: int) -> None:
        self._position = num_samples


def is_plain(batch_sampler: Any) -> bool:
    """A batch sampler that torch made from `batch_size`, not one of the user's own."""
    return type(batch_sampler) is BatchSampler


def _share(size: int, batch_size: int, shard: DataShard) -> tuple[int, int]:
    """Where a rank's part of a round begins and ends."""
    if size == batch_size * shard.count:
        return shard.index * batch_size, (shard.index + 1) * batch_size
    least, more = divmod(size, shard.count)
    first = shard.index * least + min(shard.index, more)
    return first, first + least + (shard.index < more)
