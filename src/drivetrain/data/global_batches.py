"""Batches cut from a global one: the samples of an optimizer step on all ranks together.

A window is the next `global_batch_size` samples of the epoch's order. It is cut into as few micro-batches as
`micro_batch_size` allows on each rank, and these as evenly as its samples allow, so that any size fits any ranks.
The last window of an epoch holds what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from drivetrain.data.batches import SampleBatches, share_of
from drivetrain.data.data_shard import DataShard


@dataclass(frozen=True)
class GlobalBatch:
    """How the samples of one optimizer step are cut.

    Attributes:
        samples: Of all ranks together.
        num_shards: Ranks that read data of their own.
        micro_batch_size: Samples of a micro-batch at most, on each rank.
        is_cut: Batches are cut from it; otherwise it is made up of whole batches of the loader's own.
    """

    samples: int
    num_shards: int
    micro_batch_size: int
    is_cut: bool = True

    @property
    def num_rounds(self) -> int:
        """Micro-batches of each rank."""
        return math.ceil(math.ceil(self.samples / self.num_shards) / self.micro_batch_size)

    @property
    def largest(self) -> int:
        """Samples of the largest micro-batch."""
        return math.ceil(self.rounds()[0] / self.num_shards)

    def rounds(self) -> list[int]:
        """Samples of all ranks in each of its rounds."""
        return split_evenly(self.samples, self.num_rounds)


class GlobalBatches(SampleBatches):
    """Batches of one rank, in windows of a global batch.

    Args:
        batch: How a full window is cut.
        num_samples: See `SampleBatches`.
        shard: Which rank, of how many.
        seed: Of the run.
        sampler: The user's own.
        is_shuffled: Without a sampler: shuffle.
        drops_last: Leave out a last window that is not full.
    """

    def __init__(
        self,
        batch: GlobalBatch,
        num_samples: int | None,
        *,
        shard: DataShard,
        seed: int,
        sampler: Iterable[Any] | None = None,
        is_shuffled: bool = False,
        drops_last: bool = False,
    ) -> None:
        super().__init__(
            num_samples, batch_size=batch.largest, shard=shard, seed=seed, sampler=sampler,
            is_shuffled=is_shuffled, drops_last=drops_last,
        )  # fmt: skip
        self.batch = batch
        self._pattern = batch.rounds()
        self.round_samples = batch.samples  # what `drops_last` and positions count in

    @property
    def num_rounds(self) -> int:
        full, rest = divmod(self.num_samples + self._shift, self.batch.samples)
        return full * len(self._pattern) + len(self._rounds_of(rest))

    @property
    def num_full_rounds(self) -> int:
        size = self.batch.largest * self.shard.count
        if set(self._pattern) != {size}:
            return 0
        return (self.num_samples + self._shift) // self.batch.samples * len(self._pattern)

    def window_rounds(self, index: int) -> int:
        """Rounds of the window that begins with a round."""
        window, first = divmod(index, len(self._pattern))
        return len(self._window(window)) - first

    def __iter__(self) -> Iterator[list[Any]]:
        position = self._take_position()
        order, stop = self.order(), self.num_samples
        while position < stop:
            for size in self._rounds_of(min(self.batch.samples, stop - position)):
                first, last = share_of(size, self.shard)
                if last > first:
                    yield self._packed(order[position + first : position + last], position + first)
                position += size

    def __len__(self) -> int:
        return sum(self.local_size(index) > 0 for index in range(self.num_rounds))

    def round_size(self, index: int) -> int:
        window, place = divmod(index, len(self._pattern))
        rounds = self._window(window)
        return rounds[place] if place < len(rounds) else 0

    def rounds_before(self, num_samples: int) -> int:
        full, rest = divmod(num_samples, self.batch.samples)
        return full * len(self._pattern) + (len(self._pattern) if rest else 0)

    def _window(self, number: int) -> list[int]:
        start = number * self.batch.samples - self._shift
        return self._rounds_of(max(0, min(self.batch.samples, self.num_samples - start)))

    def _rounds_of(self, samples: int) -> list[int]:
        if samples == self.batch.samples:
            return self._pattern
        return GlobalBatch(samples, self.shard.count, self.batch.micro_batch_size).rounds() if samples else []


def split_evenly(number: int, parts: int) -> list[int]:
    """Whole numbers that sum up to `number` and differ by 1 at most; larger ones first."""
    least, more = divmod(number, parts)
    return [least + (index < more) for index in range(parts)]
