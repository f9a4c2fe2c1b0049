"""Global batches: any number of samples over any ranks, each once, in the order of one process."""

from __future__ import annotations

import itertools

import pytest
from torch.utils.data import DataLoader

from drivetrain.data.data_shard import DataShard
from drivetrain.data.global_batches import GlobalBatch, GlobalBatches
from drivetrain.data.loader import Loader
from drivetrain.testing.fixtures import make_dataset

SIZES = [(24, 5), (24, 24), (7, 1), (5, 4), (1, 1), (100, 16), (13, 3)]


def rank_batches(samples: int, micro: int, world: int, rank: int, length: int, **options: object) -> GlobalBatches:
    batch = GlobalBatch(samples, world, micro)
    return GlobalBatches(batch, length, shard=DataShard(rank, world), seed=3, is_shuffled=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("samples", "micro"), SIZES)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [1, 23, 50, 48])
def test_windows_hold_the_same_samples_however_they_are_cut(samples: int, micro: int, world: int, length: int) -> None:
    """Samples would be seen twice or not at all, or belong to another step than in one process."""
    ranks = [rank_batches(samples, micro, world, rank, length) for rank in range(world)]
    order = list(ranks[0].order())
    given = [iter(list(one)) for one in ranks]
    done = start = 0
    while done < ranks[0].num_rounds:
        rounds = ranks[0].window_rounds(done)
        window: list[int] = []
        for index in range(done, done + rounds):
            sizes = [one.local_size(index) for one in ranks]
            assert sum(sizes) == ranks[0].round_size(index) and max(sizes) <= micro and max(sizes) - min(sizes) <= 1
            for size, batches in zip(sizes, given, strict=True):
                batch = next(batches) if size else []
                assert len(batch) == size
                window += batch
        assert window == order[start : start + samples]
        start, done = start + samples, done + rounds
    assert start >= length and all(next(batches, None) is None for batches in given)
    assert [len(one) for one in ranks] == [len(list(one)) for one in ranks]


@pytest.mark.parametrize(("samples", "micro"), SIZES)
def test_an_epoch_goes_on_at_a_window(samples: int, micro: int) -> None:
    """A resumed run would train on other batches."""
    whole = rank_batches(samples, micro, 2, 1, 50)
    batches = list(whole)
    done = whole.rounds_before(samples)
    skipped = sum(whole.local_size(index) > 0 for index in range(done))
    whole.set_position(min(samples, 50))
    assert list(whole) == batches[skipped:]


def test_a_position_of_another_global_batch_begins_a_window() -> None:
    """After a change of the global batch, a resumed run would skip samples or see some twice."""
    batches = rank_batches(8, 4, 1, 0, 30)
    order = list(batches.order())
    batches.set_position(10)
    assert list(itertools.chain(*list(batches))) == order[10:]


def test_the_last_window_is_left_out_where_that_was_asked_for() -> None:
    """`drop` would drop a micro-batch, and step on the rest of the window."""
    batches = rank_batches(8, 3, 2, 0, 30, drops_last=True)
    assert batches.num_samples == 24 and batches.num_rounds == 6
    assert sum(map(len, batches)) + sum(map(len, rank_batches(8, 3, 2, 1, 30, drops_last=True))) == 24


def test_full_windows_are_known_to_be_full() -> None:
    """Each window would pay for a correction that the even case does not need."""
    assert rank_batches(24, 4, 2, 0, 50).num_full_rounds == 6
    assert rank_batches(24, 5, 2, 0, 50).num_full_rounds == 6  # three rounds of 4 on each rank, evenly
    assert rank_batches(25, 4, 2, 0, 50).num_full_rounds == 0


def test_a_loader_is_cut_anew() -> None:
    """The loader's own batch size would be kept."""
    source = DataLoader(make_dataset(20), batch_size=3)
    loader = Loader(source, DataShard(0, 1), seed=0, global_batch=GlobalBatch(8, 1, 5))
    assert [len(x) for x, _ in loader] == [4, 4, 4, 4, 4] and loader.window_rounds(0) == 2
    assert [len(x) for x, _ in source] == [3] * 6 + [2]
