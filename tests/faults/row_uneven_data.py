"""R-20: two ranks hold 0 to 5 batches each, in training and in validation."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.fixtures import make_mlp
from tests.faults.rows import Row
from tests.faults.short_run import (
    DATA,
    Net,
    Outcome,
    Stream,
    check_equal,
    fit,
    in_ranks,
    train_alone,
    windows_of,
)

MOST = 5
BATCH = 2
EPOCHS = 2
PAIRS = list(itertools.product(range(MOST + 1), repeat=2))
STRIDE = 29  # so that the first few trials are not all of one kind
Shares = list[list[int]]


def trial(seed: int, directory: Path) -> None:
    """Each pair of lengths in training and each in validation; the other stage has lengths that are drawn."""
    draw = random.Random(seed)
    stage, number = divmod(seed * STRIDE % (2 * len(PAIRS)), len(PAIRS))
    pair, other = PAIRS[number], (draw.randint(1, MOST), draw.randint(0, MOST))
    lengths = (pair, other) if stage == 0 else (other, pair)
    shares, held_out = (shares_of(draw, pair, start) for pair, start in zip(lengths, (0, 200), strict=True))
    size, strategy, is_sized = draw.randint(1, 3), draw.choice(("ddp", "fsdp")), draw.random() < 0.5
    print(
        f"{lengths[0]} batches, {lengths[1]} of validation, windows of {size}, {strategy}, "
        f"{'with' if is_sized else 'without'} a length",
    )  # fmt: skip

    def loader(shares: Shares) -> DataLoader:
        own = Subset(DATA, shares[current_cluster().rank]) if is_sized else Stream(shares)
        return DataLoader(own, batch_size=BATCH)

    def in_rank() -> Outcome:
        return fit(
            Net(), loader(shares), loader(held_out), strategy=strategy, uneven="join", max_epochs=EPOCHS,
            accumulate_grad_batches=size, use_distributed_sampler=False,
        )  # fmt: skip

    outcomes = in_ranks(in_rank, directory)
    if not any(shares):
        assert [one.code for one in outcomes] == ["no-batches"] * 2, [one.error for one in outcomes]
        return
    assert not any(one.code for one in outcomes), [one.error for one in outcomes]
    epoch = [
        [number for share in shares for number in share[start : start + size * BATCH]]
        for start in range(0, max(map(len, shares)), size * BATCH)
    ]
    windows = epoch * EPOCHS
    found = windows_of(outcomes)
    assert list(found.values()) == [sorted(one) for one in windows], f"samples by step: {found}, not {windows}"
    check_equal(outcomes, windows)
    check_validation(outcomes, held_out, epoch)


def shares_of(draw: random.Random, num_batches: tuple[int, int], start: int) -> Shares:
    """Samples of each rank; the last batch may be short."""
    shares = []
    for number in num_batches:
        size = max(0, number * BATCH - draw.randrange(2))
        shares.append(list(range(start, start + size)))
        start += size
    return shares


def check_validation(outcomes: list[Outcome], held_out: Shares, epoch: Shares) -> None:
    """Each sample once in each validation; its value is the mean over them, on all ranks."""
    for outcome, share in zip(outcomes, held_out, strict=True):
        assert outcome.validated == [share] * len(outcome.validated), outcome.validated
    numbers = [number for share in held_out for number in share]
    if not numbers:
        assert all(value is None for one in outcomes for value in one.values), "a value of no sample"
        return
    samples = [DATA[number] for number in numbers]
    features, targets = torch.stack([one[0] for one in samples]), torch.stack([one[1] for one in samples])
    net = make_mlp()
    for number in range(EPOCHS):
        net.load_state_dict(train_alone(epoch * (number + 1))[0])
        value = functional.cross_entropy(net(features), targets).item()
        for rank, outcome in enumerate(outcomes):
            assert len(outcome.values) == EPOCHS, f"rank {rank} validated {len(outcome.values)} times"
            told = outcome.values[number]
            assert told is not None and abs(told - value) <= 1e-6 * value, f"rank {rank}: {told}, not {value}"


ROW = Row("R-20", "0 to 5 batches on one rank against 0 to 5 on the other", trial, trials=72, smoke=4, timeout_s=60)
