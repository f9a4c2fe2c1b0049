"""Reading a torch loader without its bookkeeping: the same batches, and torch's own call wherever somebody looks."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from drivetrain.data.unrecorded import unrecorded


class Failing(list):  # type: ignore[type-arg]
    """A data set that fails at its third sample."""

    def __getitem__(self, index):
        if index == 2:
            raise ValueError("broken sample")
        return super().__getitem__(index)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Four numbers, though its length says three."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_loader(num_workers: int) -> None:
    """Another batch would be trained on."""
    loader = DataLoader(range(10), batch_size=3, num_workers=num_workers, persistent_workers=num_workers > 0)
    for _ in range(2):
        found = list(unrecorded(iter(loader)))
        assert [batch.tolist() for batch in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_an_iteration_ends_once_and_for_all() -> None:
    """A second epoch would begin unasked."""
    batches = unrecorded(iter(DataLoader(range(2))))
    assert len(list(batches)) == 2
    assert list(batches) == []


def test_an_error_of_a_sample_comes_through_and_reading_goes_on() -> None:
    """A loader that is read on after an error, as torch's can be, would be at its end."""
    batches = unrecorded(iter(DataLoader(Failing(range(4)))))
    assert [next(batches).item(), next(batches).item()] == [0, 1]
    with pytest.raises(ValueError, match="broken sample"):
        next(batches)
    assert next(batches).item() == 3


def test_a_profiler_that_begins_later_sees_the_loader() -> None:
    """A trace would lack the time that data takes."""
    batches = unrecorded(iter(DataLoader(range(4))))
    next(batches)
    with torch.profiler.profile() as profile:
        next(batches)
    assert any("DataLoader" in event.key for event in profile.key_averages())


def test_other_iterators_are_left_alone() -> None:
    """Nothing is known of how they make their batches."""
    for batches in (iter([1, 2]), iter(DataLoader(Stream()))):
        assert unrecorded(batches) is batches


def test_torchs_own_count_of_batches_goes_on() -> None:
    """Loaders that are built on torch's read it."""
    iterator = iter(DataLoader(range(4)))
    batches = unrecorded(iterator)
    next(batches)
    next(batches)
    assert iterator._num_yielded == 2  # type: ignore[attr-defined]
