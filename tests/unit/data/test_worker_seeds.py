"""Random state in workers: the same augmentation of a sample, whoever reads it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader

LENGTH = 16


class Noisy(Dataset[torch.Tensor]):
    """Each sample is its number and what three sources of randomness gave for it."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        import numpy

        return torch.tensor([index, random.getrandbits(40), int(torch.randint(2**40, ())), numpy.random.randint(2**31)])


def draws(
    make: Callable[[int], DataLoader[Any]], *, num_ranks: int = 1, workers: int = 1, start: int = 0, epoch: int = 2
) -> Any:
    """What was drawn for each sample on any rank; all ranks are seeded alike."""
    found: dict[int, tuple[int, ...]] = {}
    for rank in range(num_ranks):
        random.seed(0)
        torch.manual_seed(0)
        loader = Loader(make(workers), DataShard(rank, num_ranks), seed=1)
        loader.set_epoch(epoch)
        loader.set_position(start)
        for rows in loader:
            found.update({number: tuple(drawn) for number, *drawn in rows.reshape(-1, 4).tolist()})
    return found


def batched(workers: int) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=workers)


def in_a_subset(workers: int) -> DataLoader[Any]:
    return DataLoader(Subset(Noisy(), range(LENGTH)), batch_size=2, shuffle=True, num_workers=workers)


def one_by_one(workers: int) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=None, num_workers=workers)


@pytest.mark.parametrize("make", [batched, in_a_subset, one_by_one])
def test_augmentation_depends_on_seed_epoch_and_position_alone(make: Any) -> None:
    """Another number of workers or ranks, or a resume, would train on other images; or ranks on the same noise."""
    expected = draws(make)
    assert len(set(expected.values())) == LENGTH
    assert not set(draws(make, epoch=3).values()) & set(expected.values()), "each epoch has noise of its own"
    assert draws(make, workers=2) == expected
    assert draws(make, num_ranks=2) == expected
    resumed = draws(make, start=8)
    assert len(resumed) == 8
    assert all(expected[number] == drawn for number, drawn in resumed.items())


class Starts(Dataset[tuple[int, int, bool]]):
    """Gives the seeds that its worker was started with."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int, bool]:
        info = get_worker_info()
        assert info is not None
        return info.seed, info.id, self.has_begun

    has_begun = False


def begin(worker_id: int) -> None:
    """A `worker_init_fn` as people write them: it changes the worker's own copy of the data set."""
    info: Any = get_worker_info()
    assert type(info.dataset) is Starts
    info.dataset.has_begun = torch.initial_seed() == info.seed


def test_no_two_workers_of_any_ranks_and_epochs_start_alike() -> None:
    """Generators that users make in their workers would give the same numbers."""
    seen = set()
    for rank in range(2):
        torch.manual_seed(0)
        source = DataLoader(Starts(), batch_size=2, num_workers=2, worker_init_fn=begin)
        loader = Loader(source, DataShard(rank, 2), seed=0)
        for epoch in range(2):
            for seeds, workers, has_begun in loader:
                seen |= {(rank, epoch, int(w), int(s)) for s, w in zip(seeds, workers, strict=True)}
                assert all(has_begun), "the user's worker_init_fn was not run on the user's data set"
    assert len(seen) == 8
    assert len({seed for *_, seed in seen}) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_the_random_state_of_the_rank_is_that_of_a_hand_written_loop(workers: int) -> None:
    """A model's dropout would differ from that of the loop that a user replaced."""

    def state_after(wrap: Callable[[Any], Any]) -> list[Any]:
        random.seed(0)
        torch.manual_seed(0)
        for _ in range(2):
            for _batch in (loader := wrap(DataLoader(Noisy(), batch_size=4, num_workers=workers))):
                torch.rand(1)
        del loader
        return [random.getstate(), torch.get_rng_state().tolist()]

    assert state_after(lambda own: Loader(own, DataShard(0, 1), seed=5)) == state_after(lambda own: own)


class Epochs(Dataset[int]):
    """Gives the epoch that it was told."""

    epoch = -1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_data_set_in_workers_that_stay_hears_of_each_epoch() -> None:
    """A curriculum would stay at its first lesson."""
    source = DataLoader(Epochs(), batch_size=2, num_workers=2, persistent_workers=True)
    loader = Loader(source, DataShard(0, 1), seed=0)
    told = [{int(n) for batch in loader for n in batch} for _ in range(2)]
    loader.set_epoch(7)
    told.append({int(n) for batch in loader for n in batch})
    assert told == [{0}, {1}, {7}]
    del loader._loader._iterator  # type: ignore[attr-defined]
