"""Samplers and batch samplers as users bring them: what they say is what is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from drivetrain.base.errors import DataError
from drivetrain.data import order
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader


class Numbers(Dataset[Any]):
    """0 to 9; a list of numbers for a list of them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        return index


class Given(Sampler[Any]):
    """Gives what it was made with; has no length."""

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)


class Sized(Given):
    """Says that it gives 4."""

    def __len__(self) -> int:
        return 4


def rounds(source: DataLoader[Any], num_ranks: int = 1, start: int = 0) -> list[list[list[int]]]:
    """What each rank reads in each round, checked against what its loader foretells."""
    loaders = [Loader(source, DataShard(rank, num_ranks), seed=0) for rank in range(num_ranks)]
    for loader in loaders:
        loader.set_position(start)
    read = [[torch.as_tensor(batch).reshape(-1).tolist() for batch in loader] for loader in loaders]
    first, last = loaders[0].rounds_before(start), loaders[0].num_rounds
    assert first is not None and last is not None
    for index in range(first, last):
        sizes = [len(own[index - first]) if index - first < len(own) else 0 for own in read]
        assert sizes == [loader.local_size(index) for loader in loaders]
        assert sum(sizes) == loaders[0].round_size(index)
    assert max(map(len, read)) == last - first
    return read


def flat(read: list[list[list[int]]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(read)))


@pytest.mark.parametrize("bulk", [False, True], ids=["batch_sampler", "sampler of lists"])
def test_a_batch_sampler_keeps_its_sampler_batch_size_and_drop_last(bulk: bool) -> None:
    """The loader that it is passed to says batch_size=None and has a sampler of its own that it does not use."""

    def loader(batches: BatchSampler) -> DataLoader[Any]:
        if bulk:
            return DataLoader(Numbers(), batch_size=None, sampler=batches)
        return DataLoader(Numbers(), batch_sampler=batches)

    ordered = BatchSampler(SequentialSampler(range(7)), 3, False)
    assert rounds(loader(ordered)) == [[[0, 1, 2], [3, 4, 5], [6]]]
    assert rounds(loader(ordered), 2) == [[[0, 1, 2], [6]], [[3, 4, 5]]]
    assert Loader(loader(ordered), DataShard(0, 1), seed=0).batch_size == 3
    shuffled = rounds(loader(BatchSampler(RandomSampler(range(8)), 3, True)))
    assert [len(batch) for batch in shuffled[0]] == [3, 3]
    assert flat(shuffled) != list(range(6)) or shuffled[0][0] != [0, 1, 2]


@pytest.mark.parametrize("sampler", [RandomSampler(range(5)), SequentialSampler(range(5))])
def test_a_sampler_over_a_part_of_the_data_reads_that_part(sampler: Any) -> None:
    """Held-out samples would be trained on."""
    assert flat(rounds(DataLoader(Numbers(), batch_size=2, sampler=sampler))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [Given, Sized])
@pytest.mark.parametrize("num_entries", [3, 5, 7])
def test_an_epoch_is_what_a_sampler_gives_not_what_it_says(kind: Any, num_entries: int) -> None:
    """A length that is missing or an estimate would end the run, or lose samples."""
    assert flat(rounds(DataLoader(Numbers(), batch_size=2, sampler=kind(range(num_entries))), 2)) == [
        *range(num_entries)
    ]
    pairs = [[index, index + 1] for index in range(0, 2 * num_entries, 2)]
    assert flat(rounds(DataLoader(Numbers(), batch_sampler=kind(pairs)), 2)) == list(range(2 * num_entries))


def test_an_epoch_of_an_endless_sampler_is_its_length() -> None:
    """Setting up the loader would never end."""
    assert flat(rounds(DataLoader(Numbers(), batch_size=2, sampler=Sized(itertools.count())))) == [0, 1, 2, 3]


def test_an_endless_sampler_without_a_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting up the loader would never end."""
    monkeypatch.setattr(order, "MOST_UNSIZED", 100)
    with pytest.raises(DataError, match="Given has no length") as caught:
        rounds(DataLoader(Numbers(), batch_size=2, sampler=Given(itertools.count())))
    assert caught.value.code == "loader-length"
    assert "__len__" in caught.value.do


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_dealt_batches_go_on_from_a_position_on_any_number_of_ranks(after: int) -> None:
    """A resumed run would repeat batches, lose some, or weigh them by the sizes of others."""
    ragged = [[0], [1, 2, 3], [4, 5], [6], [7, 8, 9]]
    source = DataLoader(Numbers(), batch_sampler=Given(ragged))
    for done in range(len(ragged)):
        position = sum(map(len, ragged[:done]))
        read = rounds(source, after, position)
        assert flat(read) == list(range(position, 10))
        assert read[0][0] == ragged[done], "the first batch that is left goes to the first rank"


def test_drawing_leaves_a_samplers_own_generator_as_it_was() -> None:
    """The user's loader would be changed under their hands."""
    generator = torch.Generator().manual_seed(5)
    sampler = RandomSampler(Numbers(), replacement=True, generator=generator)
    state = generator.get_state()
    first = rounds(DataLoader(Numbers(), batch_size=2, sampler=sampler))
    assert torch.equal(generator.get_state(), state)
    torch.rand(3, generator=generator)
    assert rounds(DataLoader(Numbers(), batch_size=2, sampler=sampler)) == first
