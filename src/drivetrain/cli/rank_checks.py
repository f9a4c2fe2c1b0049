"""What ranks of this machine can say to each other, and how fast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch

from drivetrain.base.errors import DrivetrainError
from drivetrain.cli.finding import Finding
from drivetrain.fabric.fabric import Fabric

_NUM_SMALL, _NUM_LARGE = 100, 5


def check_ranks(num_ranks: int, *, size_bytes: int = 16_000_000) -> Iterable[Finding]:
    """Start ranks, and time a small and a large all-reduce between them.

    Ranks: none; they are started.
    """
    if num_ranks < 2:
        yield Finding("ranks", "collectives", "not tried: --ranks 2")
        return
    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= num_ranks
    accelerator, strategy = ("cuda", "ddp_spawn") if has_gpus else ("cpu", "ddp_fork")
    begin = time.perf_counter()
    try:
        fabric = Fabric(accelerator=accelerator, devices=num_ranks, strategy=strategy)
        small_s, large_s, sums = fabric.launch(time_collectives, size_bytes)
    except DrivetrainError as error:
        yield Finding("ranks", "collectives", str(error).strip(), "broken", "See the message.")
        return
    total_s = time.perf_counter() - begin
    expected = num_ranks * (num_ranks + 1) / 2
    if sums != [expected, expected]:
        yield Finding("ranks", "sum", f"{sums}, not {expected}", "broken", "The network or its driver loses data.")
    yield Finding("ranks", "start and end", f"{total_s:.1f} s for {num_ranks} ranks on {accelerator}")
    text = f"{small_s * 1e6:.0f} us (median of {_NUM_SMALL} sums of one number)"
    if small_s > 5e-3:
        yield Finding("ranks", "latency", text, "look", "More ranks than cores? Is the machine busy?")
    else:
        yield Finding("ranks", "latency", text)
    rate = size_bytes / large_s / 1e6
    text = f"{rate:.0f} MB/s (median of {_NUM_LARGE} sums of {size_bytes / 1e6:.0f} MB over {num_ranks} ranks)"
    if rate < 20:
        yield Finding("ranks", "bandwidth", text, "look", "Is it the interface that you mean? See GLOO_SOCKET_IFNAME.")
    else:
        yield Finding("ranks", "bandwidth", text)


def time_collectives(fabric: Fabric, size_bytes: int) -> tuple[float, float, list[float]]:
    """Median seconds of a small and of a large all-reduce, and their sums of rank + 1, which tell if they are right.

    Ranks: all.
    """
    collectives, mine = fabric.collectives, float(fabric.global_rank + 1)
    for _ in range(5):
        collectives.agree([mine])
    small = [_timed(lambda: collectives.agree([mine])) for _ in range(_NUM_SMALL)]
    data = torch.full((size_bytes // 4,), mine, device=fabric.device)
    collectives.all_reduce(data, "sum")
    large = [_timed(lambda: float(collectives.all_reduce(data, "sum")[-1])) for _ in range(_NUM_LARGE)]
    return (
        statistics.median(seconds for seconds, _ in small),
        statistics.median(seconds for seconds, _ in large),
        [small[-1][1][0], large[-1][1]],
    )


def _timed(function: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    value = function()
    return time.perf_counter() - begin, value
