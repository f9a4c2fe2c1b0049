"""What a resume reads, and how often a source is begun."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from drivetrain import Trainer
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader
from tests.resume.training import Augmented, Case, Net, StatefulStream, Stream
from tests.unit.trainer.runs import QUIET

LENGTH = 24


class Resumed:
    """Trains six of eight steps, saves, and goes on with new data."""

    def __init__(self, make: Any, root: Path) -> None:
        self.whole, self.data = make(), make()
        for loader, steps, path in ((self.whole, 6, None), (self.data, 8, root / "checkpoint")):
            trainer = Trainer(**QUIET, max_steps=steps)
            trainer.fit(Net(Case()), loader, ckpt_path=path)
            trainer.save_checkpoint(root / "checkpoint")


def own_sampler() -> Any:
    data = Augmented(LENGTH)
    return DataLoader(data, batch_size=3, sampler=DistributedSampler(data, 1, 0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Augmented(LENGTH), batch_size=3, shuffle=True), own_sampler,
        lambda: DataLoader(StatefulStream(), batch_size=3),
    ],
    ids=["map", "own-sampler", "stateful"],
)  # fmt: skip
def test_nothing_of_what_was_consumed_is_read_again(make: Any, tmp_path: Path) -> None:
    """A resume late in an epoch would take hours."""
    resumed = Resumed(make, tmp_path)
    data = getattr(resumed.data.dataset, "data", resumed.data.dataset)
    assert data.reads <= 6


def test_a_loader_that_is_left_alone_leaves_out_indices(tmp_path: Path) -> None:
    """use_distributed_sampler=False would read what was consumed, though a sampler says what it is."""
    data = Augmented(LENGTH)
    loader = Loader(DataLoader(data, batch_size=3), DataShard(0, 1), seed=0, hands_off=True)
    assert [numbers.tolist() for _, _, numbers in loader.iterate_from(6)] == [[18, 19, 20], [21, 22, 23]]
    assert data.reads == 6
    assert len(list(loader)) == 8


@pytest.mark.filterwarnings("ignore:.*cannot begin in the middle")
def test_a_stream_is_read_past_and_begun_once(tmp_path: Path) -> None:
    """It cannot be positioned; a second iterator would lose samples."""

    class Counting(Stream):
        begun = 0

        def __iter__(self) -> Iterator[Any]:
            self.begun += 1
            return super().__iter__()

    resumed = Resumed(lambda: DataLoader(Counting(), batch_size=3), tmp_path)
    assert resumed.data.dataset.begun == 1 and resumed.data.dataset.data.reads == 23


def test_a_long_way_back_is_said_with_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Hours of reading would look as if the run hung."""
    from drivetrain.data.replay import read_past

    ticks = itertools.count(0, 4)
    with pytest.warns(UserWarning, match="its first 10 batches are read and dropped"):
        read_past(iter(range(20)), 10, clock=lambda: float(next(ticks)))
    assert "Read 3 of 10 batches to where the run goes on; about 28 s left." in caplog.text


@pytest.mark.filterwarnings("ignore:.*cannot begin in the middle")
def test_epochs_after_a_resumed_one_are_full(tmp_path: Path) -> None:
    """Workers that stay would go on with what was left of the resumed epoch."""
    source = DataLoader(Stream(), batch_size=3, num_workers=2, persistent_workers=True)
    loader = Loader(source, DataShard(0, 1), seed=0)
    lengths = [sum(len(batch[2]) for batch in batches) for batches in (loader.iterate_from(6), loader, loader)]
    loader.close()
    assert lengths == [23 - 6 * 3, 23, 23]


def test_asking_for_lengths_does_not_move_a_position(tmp_path: Path) -> None:
    """A scheduler that needs the number of steps would lose the samples that a resume goes on with."""

    class Asking(Net):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches and self.trainer.num_training_batches
            return super().configure_optimizers()

    seen: list[list[int]] = []
    for steps, path in ((8, None), (5, None), (8, tmp_path / "checkpoint")):
        numbers: list[int] = []
        module = Asking(Case())
        module.on_train_batch_start = lambda batch, index, into=numbers: into.extend(batch[2].tolist())  # type: ignore[attr-defined]
        trainer = Trainer(**QUIET, max_steps=steps)
        trainer.fit(module, DataLoader(StatefulStream(), batch_size=3), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "checkpoint")
        seen.append(numbers)
    assert seen[1] + seen[2] == seen[0]


def test_workers_that_stay_end_with_the_run(tmp_path: Path) -> None:
    """They would hold memory until the trainer is collected, and then be killed after five seconds each."""
    import multiprocessing

    source = DataLoader(Augmented(12), batch_size=3, num_workers=2, persistent_workers=True)
    trainer = Trainer(**QUIET, max_epochs=2)
    trainer.fit(Net(Case()), source)
    assert multiprocessing.active_children() == []
