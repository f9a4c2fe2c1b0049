"""Which samples a rank gets, in which micro-batch.

All ranks together take the samples of an epoch in order: round i is the next `batch_size x ranks` of them, and rank r
has the r-th part of it. So an accumulation window of K rounds holds the same samples however ranks and micro-batches
cut it. The last round is split as evenly as its samples allow; a rank may have none in it.

An iteration may begin at any position. Its rounds then go on from there; they are numbered as if the first of them
followed as many as it takes to hold what came before.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, Sampler

from drivetrain.data.data_shard import DataShard
from drivetrain.data.order import drawn_order, epoch_order
from drivetrain.data.worker_seeds import Place, SeededBatch


class ShardedBatches(Sampler[list[Any]], ABC):
    """A batch sampler for one rank.

    Attributes:
        shard: Which rank, of how many.
        seed: Of the run.
        epoch: The epoch that the next iteration gives.
        batch_size: Nominal samples of a micro-batch; `None` if they have no such size.
        carries_seeds: Batches tell the workers that read them where they are.
        told_epoch: The epoch that the data set was told last; `None` before the first.
    """

    _shift = 0

    def __init__(self, *, shard: DataShard, seed: int, batch_size: int | None) -> None:
        self.shard = shard
        self.seed = seed
        self.batch_size = batch_size
        self.epoch = 0
        self.carries_seeds = False
        self.told_epoch: int | None = None
        self._position = 0

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Samples of an epoch on all ranks together."""

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """Micro-batches of an epoch, on the rank that has most."""

    @property
    @abstractmethod
    def num_full_rounds(self) -> int:
        """Rounds at the beginning of an epoch in which every rank has `batch_size` samples."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[Any]]:
        """This rank's batches of indices, from the position on."""

    @abstractmethod
    def __len__(self) -> int:
        """This rank's batches of a whole epoch."""

    @abstractmethod
    def round_size(self, index: int) -> int:
        """Samples of all ranks in a round, counted from the beginning of the epoch."""

    @abstractmethod
    def local_size(self, index: int) -> int:
        """This rank's samples in a round."""

    @abstractmethod
    def rounds_before(self, num_samples: int) -> int:
        """Rounds, as they are cut here, that hold the first so many samples of the epoch."""

    @abstractmethod
    def _align(self, num_samples: int) -> None:
        """Let a round begin after so many samples."""

    def batch_at(self, index: int) -> list[Any] | None:
        """This rank's samples in a round of the epoch; `None` if rounds are cut otherwise since a resume."""
        if self._shift:
            return None
        batches = copy.copy(self)
        batches.set_epoch(self.epoch)
        return next((list(one) for one in itertools.islice(batches, index, None)), None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, which begins at its beginning."""
        self.epoch = epoch
        self.set_position(0)

    def set_position(self, num_samples: int) -> None:
        """Let the next iteration begin after so many samples of the epoch, on all ranks together. None is read."""
        self._position = num_samples
        self._align(num_samples)

    def _take_position(self) -> int:
        """Where this iteration begins; the one after it begins at the beginning.

        Called when the first batch is asked for: with workers, torch 2.13 makes two iterators and drops the first.
        """
        position, self._position = self._position, 0
        self._align(position)
        return position

    def _packed(self, indices: Sequence[Any], position: int) -> list[Any]:
        if not self.carries_seeds:
            return list(indices)
        place = Place(self.seed, self.epoch, position, self.told_epoch)
        return SeededBatch(indices, place=place)


class SampleBatches(ShardedBatches):
    """Batches cut from an order of samples.

    Args:
        num_samples: Samples of the data set; a sampler of the user's own says by itself how many it gives.
        batch_size: Of a micro-batch, on each rank.
        shard: Which rank, of how many.
        seed: Of the run.
        sampler: The user's own; by default the samples as they are, or shuffled.
        is_shuffled: Without a sampler: shuffle.
        drops_last: Leave out the last round if it is not full.
    """

    def __init__(
        self,
        num_samples: int | None,
        *,
        batch_size: int,
        shard: DataShard,
        seed: int,
        sampler: Iterable[Any] | None = None,
        is_shuffled: bool = False,
        drops_last: bool = False,
    ) -> None:
        super().__init__(shard=shard, seed=seed, batch_size=batch_size)
        self._num_given = num_samples
        self.sampler = sampler
        self.is_shuffled = is_shuffled
        self.drops_last = drops_last
        self.round_samples = batch_size * shard.count
        self._shift = 0  # round i begins at sample i * round_samples - shift
        self._drawn: tuple[tuple[int, int], list[Any]] | None = None

    def order(self) -> Sequence[Any]:
        """The samples of the epoch, for all ranks."""
        if self.sampler is None:
            assert self._num_given is not None
            return epoch_order(self._num_given, seed=self.seed, epoch=self.epoch, is_shuffled=self.is_shuffled)
        key = (self.seed, self.epoch)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = (key, drawn_order(self.sampler, seed=self.seed, epoch=self.epoch))
        return self._drawn[1]

    @property
    def _num_all(self) -> int:
        if self.sampler is None and self._num_given is not None:
            return self._num_given
        return len(self.order())

    @property
    def num_samples(self) -> int:
        count = self._num_all
        return count - (count + self._shift) % self.round_samples if self.drops_last else count

    @property
    def num_rounds(self) -> int:
        return -(-(self.num_samples + self._shift) // self.round_samples)

    @property
    def num_full_rounds(self) -> int:
        return (self.num_samples + self._shift) // self.round_samples

    def __iter__(self) -> Iterator[list[Any]]:
        position = self._take_position()
        order, stop, size = self.order(), self.num_samples, self.round_samples
        first, last = share_of(size, self.shard)
        for start in range(position, stop, size):
            if stop - start < size:
                first, last = share_of(stop - start, self.shard)
            if last > first:
                yield self._packed(order[start + first : start + last], start + first)

    def __len__(self) -> int:
        rounds = self.num_rounds
        return rounds - 1 if rounds and self.local_size(rounds - 1) == 0 else rounds

    def round_size(self, index: int) -> int:
        start = index * self.round_samples - self._shift
        return max(0, min(self.round_samples, self.num_samples - start))

    def local_size(self, index: int) -> int:
        first, last = share_of(self.round_size(index), self.shard)
        return last - first

    def rounds_before(self, num_samples: int) -> int:
        return -(-num_samples // self.round_samples)

    def _align(self, num_samples: int) -> None:
        self._shift = -num_samples % self.round_samples


class DealtBatches(ShardedBatches):
    """A user's own batch sampler, whose batches are dealt out to the ranks in turn."""

    def __init__(self, batch_sampler: Any, *, shard: DataShard, seed: int) -> None:
        super().__init__(shard=shard, seed=seed, batch_size=None)
        self.batch_sampler = batch_sampler
        self._shift = 0  # round i begins at batch i * ranks - shift
        self._drawn: tuple[tuple[int, int], list[list[Any]]] | None = None

    def _batches(self) -> list[list[Any]]:
        key = (self.seed, self.epoch)
        if self._drawn is None or self._drawn[0] != key:
            drawn = drawn_order(self.batch_sampler, seed=self.seed, epoch=self.epoch)
            self._drawn = (key, [list(batch) for batch in drawn])
        return self._drawn[1]

    @property
    def num_samples(self) -> int:
        return sum(map(len, self._batches()))

    @property
    def num_rounds(self) -> int:
        return -(-(len(self._batches()) + self._shift) // self.shard.count)

    @property
    def num_full_rounds(self) -> int:
        return 0

    def __iter__(self) -> Iterator[list[Any]]:
        begin, batches = self._index_at(self._take_position()), self._batches()
        done = sum(map(len, batches[:begin]))
        for index, batch in enumerate(batches[begin:]):
            if index % self.shard.count == self.shard.index:
                yield self._packed(batch, done)
            done += len(batch)

    def __len__(self) -> int:
        return len(range(self.shard.index, len(self._batches()), self.shard.count))

    def round_size(self, index: int) -> int:
        first = index * self.shard.count - self._shift
        return sum(map(len, self._batches()[max(0, first) : max(0, first + self.shard.count)]))

    def local_size(self, index: int) -> int:
        batches = self._batches()
        place = index * self.shard.count - self._shift + self.shard.index
        return len(batches[place]) if 0 <= place < len(batches) else 0

    def rounds_before(self, num_samples: int) -> int:
        return -(-self._index_at(num_samples) // self.shard.count)

    def _align(self, num_samples: int) -> None:
        self._shift = -self._index_at(num_samples) % self.shard.count

    def _index_at(self, num_samples: int) -> int:
        """How many batches hold the first so many samples."""
        if num_samples == 0:
            return 0
        done = 0
        for index, batch in enumerate(self._batches()):
            if done >= num_samples:
                return index
            done += len(batch)
        return len(self._batches())


def is_plain(batch_sampler: Any) -> bool:
    """A batch sampler that cuts an order of samples into batches of one size, as torch does; not one of other ways."""
    return type(batch_sampler) is BatchSampler


def share_of(size: int, shard: DataShard) -> tuple[int, int]:
    """Where a rank's part of a round begins and ends."""
    least, more = divmod(size, shard.count)
    first = shard.index * least + min(shard.index, more)
    return first, first + least + (shard.index < more)
