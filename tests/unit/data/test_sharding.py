"""Which samples a rank gets: each once, in windows that do not depend on the cut, from any position on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler, WeightedRandomSampler

from drivetrain.data.batches import SampleBatches
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader
from drivetrain.testing.fixtures import NumberedDataset


def make_batches(length: int, batch_size: int, num_ranks: int, **options: Any) -> list[SampleBatches]:
    return [
        SampleBatches(
            length, batch_size=batch_size, shard=DataShard(rank, num_ranks), seed=3, is_shuffled=True, **options
        )
        for rank in range(num_ranks)
    ]


def flat(rounds: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(rounds))


def by_round(ranks: list[SampleBatches]) -> list[list[int]]:
    """The samples of all ranks in each round."""
    rounds: list[list[int]] = []
    for batches in ranks:
        for index, batch in enumerate(batches):
            while len(rounds) <= index:
                rounds.append([])
            rounds[index].extend(batch)
    return rounds


@settings(max_examples=150, deadline=None)
@given(length=st.integers(1, 60), batch_size=st.integers(1, 7), num_ranks=st.integers(1, 5))
def test_each_sample_comes_once_and_sizes_are_foretold(length: int, batch_size: int, num_ranks: int) -> None:
    """Samples would be trained on twice or never, or weighed wrongly."""
    ranks = make_batches(length, batch_size, num_ranks)
    rounds = by_round(ranks)
    assert sorted(flat(rounds)) == list(range(length))
    assert len(rounds) == ranks[0].num_rounds
    for index, one in enumerate(rounds):
        assert ranks[0].round_size(index) == len(one)
    for batches in ranks:
        own = [len(batch) for batch in batches]
        assert len(batches) == len(own)
        assert own == [size for size in map(batches.local_size, range(batches.num_rounds)) if size]
        assert own[: batches.num_full_rounds] == [batch_size] * batches.num_full_rounds


@pytest.mark.parametrize("length", [96, 100, 7])
def test_a_window_holds_the_same_samples_however_it_is_cut(length: int) -> None:
    """The same global batch on other ranks would be another step."""
    windows = []
    for batch_size, num_ranks, size in [(24, 1, 1), (6, 1, 4), (3, 4, 2), (4, 2, 3), (12, 2, 1), (1, 4, 6)]:
        rounds = by_round(make_batches(length, batch_size, num_ranks))
        windows.append([sorted(flat(rounds[i : i + size])) for i in range(0, len(rounds), size)])
    assert all(one == windows[0] for one in windows)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(4, 50), done=st.integers(0, 5), before=st.integers(1, 4), after=st.integers(1, 4))
def test_an_epoch_goes_on_from_a_position_on_any_number_of_ranks(
    length: int, done: int, before: int, after: int
) -> None:
    """A resumed run would repeat samples, or lose some."""
    first = by_round(make_batches(length, 2, before))
    seen = flat(first[:done])
    rest = make_batches(length, 2, after)
    for batches in rest:
        batches.set_position(len(seen))
    assert sorted(seen + flat(by_round(rest))) == list(range(length))
    assert sorted(flat(by_round(rest))) == list(range(length)), "a position holds for one iteration"


def test_orders_differ_between_epochs_and_are_equal_between_runs() -> None:
    """The same shuffle in every epoch, or another one after a resume."""
    (batches,) = make_batches(20, 4, 1)
    first = list(batches)
    batches.set_epoch(1)
    second = list(batches)
    batches.set_epoch(0)
    assert first != second
    assert list(batches) == first == list(make_batches(20, 4, 1)[0])


def test_the_last_round_is_dropped_over_all_ranks() -> None:
    """`drop_last` would drop other samples on other ranks."""
    ranks = make_batches(23, 4, 2, drops_last=True)
    assert [len(one) for one in by_round(ranks)] == [8, 8]


class Wanting(DataLoader[Any]):
    """A subclass whose constructor nobody can guess."""

    def __init__(self, dataset: Any, *, needed: int) -> None:
        super().__init__(dataset, batch_size=needed)
        self.needed = needed


class Backwards(Sampler[int]):
    """A sampler of the user's own, which draws from the global random state."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        yield from sorted(range(self.length), key=lambda _: random.random())

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Pairs(BatchSampler):
    """A batch sampler of the user's own, with another constructor."""

    def __init__(self, pairs: list[list[int]]) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.pairs

    def __len__(self) -> int:
        return len(self.pairs)


def numbers_of(source: Any, num_ranks: int, *, seed: int = 0) -> list[list[int]]:
    """The samples of each rank."""
    ranks = [Loader(source, DataShard(rank, num_ranks), seed=seed) for rank in range(num_ranks)]
    return [[int(n) for _, _, numbers in loader for n in torch.as_tensor(numbers).reshape(-1)] for loader in ranks]


@pytest.mark.parametrize(
    "make",
    [
        lambda data: Wanting(data, needed=3),
        lambda data: DataLoader(data, batch_size=3, sampler=Backwards(len(data))),
        lambda data: DataLoader(data, batch_sampler=Pairs([[i, i + 1] for i in range(0, len(data), 2)])),
        lambda data: DataLoader(data, batch_size=None),
        lambda data: DataLoader(data, batch_size=3, shuffle=True),
    ],
    ids=["subclass", "sampler", "batch sampler", "no batches", "shuffled"],
)
def test_any_loader_is_shared_out_and_left_as_it_was(make: Any) -> None:
    """Loaders that were not built by the book would fail, or be changed under the user's hands."""
    source = make(NumberedDataset(14))
    before = dict(source.__dict__)
    shares = numbers_of(source, 2)
    assert sorted(shares[0] + shares[1]) == list(range(14))
    assert shares[0] and shares[1]
    assert source.__dict__ == before
    assert type(Loader(source, DataShard(0, 2), seed=0)._loader) is type(source)


def test_drawing_an_order_leaves_the_global_random_state() -> None:
    """A model's dropout would depend on how its data is sampled."""
    source = DataLoader(NumberedDataset(14), batch_size=3, sampler=Backwards(14))
    state = random.getstate(), torch.get_rng_state()
    first = list(Loader(source, DataShard(0, 2), seed=0)._batches or [])
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert list(Loader(source, DataShard(0, 2), seed=0)._batches or []) == first


def test_a_weighted_sampler_draws_the_same_on_every_rank() -> None:
    """Ranks would share out different draws."""
    source = DataLoader(NumberedDataset(10), batch_size=2, sampler=WeightedRandomSampler([1.0] * 10, 12))
    torch.manual_seed(1)
    first = numbers_of(source, 2)
    torch.manual_seed(2)
    assert numbers_of(source, 2) == first


def test_loaders_that_shard_themselves_are_left_alone() -> None:
    """They would be sharded twice."""
    data = NumberedDataset(12)
    source = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    assert [numbers.tolist() for _, _, numbers in Loader(source, DataShard(0, 2), seed=0)] == [
        numbers.tolist() for _, _, numbers in source
    ]
    plain = DataLoader(data, batch_size=2)
    assert Loader(plain, DataShard(0, 2), seed=0, hands_off=True)._loader is plain


def test_the_epoch_reaches_whoever_wants_to_know() -> None:
    """A user's sampler would shuffle alike in every epoch."""
    sampler = Backwards(6)

    class Knowing(NumberedDataset):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    data = Knowing(6)
    loader = Loader(DataLoader(data, batch_size=2, sampler=sampler), DataShard(0, 1), seed=0)
    loader.set_epoch(4)
    assert data.epoch == 4
    assert 4 in sampler.epochs


def test_an_epoch_begins_one_iteration() -> None:
    """Extra iterators read streams twice and start workers for nothing."""

    class Counting(Dataset[int]):
        reads = 0

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            Counting.reads += 1
            return index

    loader = Loader(DataLoader(Counting(), batch_size=2), DataShard(0, 1), seed=0)
    assert len(list(loader)) == 3
    assert Counting.reads == 6


def test_persistent_workers_see_each_epochs_order() -> None:
    """Workers that stay would go on with the first order, or be started again for each epoch."""
    source = DataLoader(NumberedDataset(8), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    loader = Loader(source, DataShard(0, 1), seed=0)
    epochs = [[int(n) for _, _, numbers in loader for n in numbers] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    del loader._loader._iterator  # type: ignore[attr-defined]
