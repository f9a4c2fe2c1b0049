"""What a run iterates over: epochs, positions, sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

from drivetrain.base.errors import DataError
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader, check_loader


class Told(Dataset[int]):
    """Notes the epochs that it is told and the samples that are read."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.epochs: list[int] = []
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.reads.append(index)
        return index

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def numbers(loader: Loader) -> list[int]:
    return [int(number) for batch in loader for number in batch]


def ranks_of(data: Any, batch_size: int, num_ranks: int, **options: Any) -> list[Loader]:
    source = DataLoader(data, batch_size=batch_size, shuffle=True, **options)
    return [Loader(source, DataShard(rank, num_ranks), seed=3) for rank in range(num_ranks)]


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 40), batch_size=st.integers(1, 5), num_ranks=st.integers(1, 4), start=st.integers(0, 39),
    drops_last=st.booleans(),
)  # fmt: skip
def test_sizes_are_foretold_from_any_position_on(
    length: int, batch_size: int, num_ranks: int, start: int, drops_last: bool
) -> None:
    """After a resume on other ranks, batches would be weighed by the sizes of others, or be waited for in vain."""
    if drops_last and length < batch_size * num_ranks:
        return
    start = min(start, length)
    loaders = ranks_of(Told(length), batch_size, num_ranks, drop_last=drops_last)
    uncut = numbers(ranks_of(Told(length), 1, 1)[0])
    for loader in loaders:
        loader.set_position(start)
    read = [[batch.tolist() for batch in loader] for loader in loaders]
    first, last = loaders[0].rounds_before(start), loaders[0].num_rounds
    assert first is not None and last is not None
    for index in range(first, last):
        own = [len(one[index - first]) if index - first < len(one) else 0 for one in read]
        assert own == [loader.local_size(index) for loader in loaders]
        assert sum(own) == loaders[0].round_size(index)
        assert max(own) - min(own) <= 1
        assert not drops_last or own == [batch_size] * num_ranks
        assert index >= loaders[0].num_full_rounds or own == [batch_size] * num_ranks
    stop = loaders[0].num_samples
    assert sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(read))) == sorted(uncut[start:stop])


def test_one_epoch_may_be_read_on_two_then_one_then_three_ranks() -> None:
    """A run that loses a machine and gets others would lose samples, or read some twice."""
    seen: list[int] = []
    for num_ranks, num_rounds in [(2, 2), (1, 3), (3, 99)]:
        start = len(seen)
        for loader in ranks_of(Told(41), 3, num_ranks):
            loader.set_position(start)
            seen += [int(n) for batch in itertools.islice(loader, num_rounds) for n in batch]
    assert sorted(seen) == list(range(41))


def test_a_resume_reads_nothing_of_what_came_before() -> None:
    """Hours of reading would be thrown away."""
    data = Told()
    (loader,) = ranks_of(data, 2, 1)
    whole = numbers(loader)
    data.reads.clear()
    loader.set_epoch(0)
    loader.set_position(6)
    assert numbers(loader) == whole[6:] == data.reads
    loader.set_epoch(0)
    assert numbers(loader) == whole, "later epochs are whole"


def test_a_position_holds_without_an_epoch_being_set() -> None:
    """A raw loop that resumes would begin its epoch anew."""
    (loader,) = ranks_of(Told(), 2, 1)
    first = numbers(loader)
    loader.set_position(4)
    rest = numbers(loader)
    assert len(rest) == 6
    (again,) = ranks_of(Told(), 2, 1)
    again.set_epoch(1)
    assert numbers(again)[4:] == rest
    assert len(numbers(loader)) == len(first)


def test_epochs_go_on_by_themselves_and_reach_the_data_set() -> None:
    """The same shuffle or the same lesson in every epoch."""
    data = Told()
    (loader,) = ranks_of(data, 5, 1)
    orders = [numbers(loader) for _ in range(3)]
    assert len({tuple(one) for one in orders}) == 3
    loader.set_epoch(7)
    numbers(loader)
    numbers(loader)
    assert data.epochs == [0, 1, 2, 7, 8]


def test_an_evaluation_does_not_tell_a_shared_data_set_its_own_epochs() -> None:
    """A validation in the middle of an epoch would throw training back to the first lesson."""
    data = Told()
    evaluation = Loader(DataLoader(data, batch_size=2), DataShard(0, 1), seed=0, training=False)
    numbers(evaluation)
    assert data.epochs == []
    evaluation.set_epoch(4)
    assert data.epochs == [4]


@pytest.mark.parametrize("wrap", [lambda data: Subset(data, [0, 1]), lambda data: ConcatDataset([data, Told(2)])])
def test_the_epoch_reaches_a_wrapped_data_set(wrap: Any) -> None:
    """It would depend on `random_split` whether a data set hears of epochs."""
    data = Told()
    Loader(DataLoader(wrap(data), batch_size=1), DataShard(0, 1), seed=0).set_epoch(3)
    assert data.epochs == [3]


def test_a_loader_that_shards_itself_hears_of_epochs_that_are_set_only() -> None:
    """A user who calls `sampler.set_epoch` would be overruled."""
    data = Told()
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    loader = Loader(DataLoader(data, batch_size=1, sampler=sampler), DataShard(0, 2), seed=0)
    sampler.set_epoch(5)
    numbers(loader)
    assert sampler.epoch == 5
    loader.set_epoch(6)
    assert sampler.epoch == 6


class Stream(IterableDataset[int]):
    """Reads from a source with side effects."""

    opened = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        return iter(range(6))


def test_a_stream_is_opened_once_for_each_epoch() -> None:
    """Samples would be lost to iterators that nobody reads."""
    data = Stream()
    loader = Loader(DataLoader(data, batch_size=2), DataShard(0, 1), seed=0)
    assert data.opened == 0
    assert [numbers(loader), numbers(loader)] == [list(range(6))] * 2
    assert data.opened == 2
    assert loader.num_rounds is None and loader.local_size(0) is None and not loader.can_position


def test_any_iterable_of_batches_is_a_loader() -> None:
    """Only torch loaders could be trained on."""
    batches = [torch.arange(2), torch.arange(2, 4)]
    loader = Loader(batches, DataShard(0, 1), seed=0, move=lambda batch: batch + 1)
    assert numbers(loader) == [1, 2, 3, 4]
    assert (loader.num_batches, len(loader), loader.batch_size) == (2, 2, None)
    with pytest.raises(TypeError):
        len(Loader(iter(batches), DataShard(0, 1), seed=0))


@pytest.mark.parametrize("source", ["train.csv", b"train", None, 3, Told(), nn.Linear(1, 1), nn.Sequential()])
def test_what_is_no_loader_is_refused(source: Any) -> None:
    """A model in the loader's place would be iterated over, layer by layer."""
    with pytest.raises(DataError, match=type(source).__name__) as caught:
        check_loader(source)
    assert caught.value.code == "not-a-loader"


def test_other_attributes_are_those_of_the_users_loader() -> None:
    """Code that reads `loader.num_workers` or its own attribute would fail."""
    source = DataLoader(Told(), batch_size=2)
    loader = Loader(source, DataShard(0, 1), seed=0)
    assert loader.dataset is source.dataset
    assert loader.collate_fn is source.collate_fn
    with pytest.raises(AttributeError):
        loader.no_such_thing  # noqa: B018
