"""Which share of the data a rank reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataShard:
    """Share `index` of `count` equal ones. Ranks that hold parts of one model share a shard."""

    index: int
    count: int
