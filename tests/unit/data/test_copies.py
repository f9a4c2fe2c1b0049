"""Batches that are copied beside the computation: in which order, and what is not read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from drivetrain import Callback, Trainer
from drivetrain.data.copies import Copies
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader
from drivetrain.loop.batch_transfer import bind_transfer
from drivetrain.testing.fake_streams import FakeStreams
from drivetrain.testing.fixtures import NumberedDataset
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, loader, weights

CPU = torch.device("cpu")


def batches(log: list[str], number: int = 3, error_at: int | None = None) -> Iterator[Any]:
    """Batches that say when they are read."""
    for index in range(number):
        log.append(f"read {index}")
        if index == error_at:
            raise ValueError("damaged")
        yield [torch.full((2,), float(index))]


def doubled(streams: FakeStreams) -> Any:
    """A move that has to run in the stream of copies."""

    def move(batch: Any) -> Any:
        assert streams.is_beside
        return [batch[0] * 2]

    return move


def test_the_next_batch_is_copied_before_this_one_is_computed() -> None:
    """A copy would begin when it is needed, or a step compute on what is still being copied."""
    streams = FakeStreams()
    for batch in Copies(streams).of(batches(streams.log), doubled(streams), is_ahead=True):
        streams.log.append(f"step {batch[0][0].item():g}")
    assert streams.log == [
        "read 0", "copy 0", "read 1", "copy 1", "wait 0", "keep", "step 0",
        "read 2", "copy 2", "wait 1", "keep", "step 2",
        "wait 2", "keep", "step 4",
    ]  # fmt: skip


def test_a_loader_that_may_not_be_read_ahead_is_not() -> None:
    """Random numbers that its reading draws would come before those of the step, and a resume draw others."""
    streams = FakeStreams()
    for batch in Copies(streams).of(batches(streams.log, 2), doubled(streams), is_ahead=False):
        streams.log.append(f"step {batch[0][0].item():g}")
    assert streams.log == [
        "read 0", "copy 0", "wait 0", "keep", "step 0", "read 1", "copy 1", "wait 1", "keep", "step 2",
    ]  # fmt: skip


def test_an_error_is_raised_when_its_batch_is_due() -> None:
    """A damaged sample would end the run a step early, and be named as another one."""
    streams = FakeStreams()
    reading = Copies(streams).of(batches(streams.log, 3, error_at=1), doubled(streams), is_ahead=True)
    assert next(reading)[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="damaged"):
        next(reading)


class Own:
    """A batch of a class of its own, whose tensors cannot be seen."""

    def to(self, device: Any, **options: Any) -> Own:
        return self


class Pair(NamedTuple):
    """A batch."""

    left: Tensor
    right: Tensor


@pytest.mark.parametrize(
    ("batch", "num_copies"),
    [
        (Own(), 0),
        ({"x": torch.ones(1).to_sparse()}, 0),
        ([torch.empty(1, device="meta")], 0),
        (["text"], 0),
        (Pair(torch.ones(1), torch.ones(1)), 1),
        ({"x": [torch.ones(1), 3]}, 1),
    ],
    ids=["own-class", "sparse", "on-a-device", "text", "named-tuple", "nested"],
)
def test_what_cannot_be_kept_is_moved_when_it_is_handed_out(batch: Any, num_copies: int) -> None:
    """Memory of tensors that are hidden, or made by the computation, would be written to while it is read."""
    streams = FakeStreams()
    (moved,) = Copies(streams).of(iter([batch]), lambda one: one, is_ahead=True)
    assert moved is batch
    assert sum(line.startswith("copy") for line in streams.log) == num_copies


def make_loader(streams: FakeStreams, *, workers: int = 2, **options: Any) -> Loader:
    made = Loader(
        DataLoader(NumberedDataset(12), batch_size=4, num_workers=workers), DataShard(0, 1), seed=0, **options
    )
    made.move, made.copies = (lambda batch: batch), Copies(streams)
    return made


@pytest.mark.parametrize(("workers", "first"), [(2, ["copy 0", "copy 1", "wait 0"]), (0, ["copy 0", "wait 0"])])
def test_loaders_with_workers_are_read_ahead(workers: int, first: list[str]) -> None:
    """Data that this process makes would draw random numbers out of their order; or nothing be read ahead."""
    streams = FakeStreams()
    reading = iter(make_loader(streams, workers=workers))
    next(reading)
    assert [line for line in streams.log if line != "keep"] == first
    assert len(list(reading)) == 2


class Hooks(Classifier):
    """Notes when batches come to it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log_lines = log

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.log_lines.append("after")
        return batch


class EarlyHooks(Hooks):
    """Sees batches before they are moved."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.log_lines.append("before")
        return batch


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (Hooks, ["copy 0", "copy 1", "wait 0", "after", "step", "copy 2", "wait 1", "after", "step"]),
        (EarlyHooks, ["before", "after", "step", "before", "after", "step"]),
    ],
)
def test_hooks_of_a_transfer_run_when_their_batch_is_due(kind: type[Hooks], lines: list[str]) -> None:
    """They would see the counters, and draw the random numbers, of another step."""
    streams = FakeStreams()
    made = make_loader(streams)
    bind_transfer([kind(streams.log)], made, CPU, lambda batch: batch, 0)
    for _ in made:
        streams.log.append("step")
    assert [line for line in streams.log if line != "keep"][: len(lines)] == lines


class Ahead(Callback):
    """Lets the loader of training copy ahead, as on a GPU; saves after a step."""

    def __init__(self, path: Path | None = None, save_at: int = 0) -> None:
        self.path, self.save_at = path, save_at
        self.streams = FakeStreams()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        made = trainer.run.train_loader
        made.move, made.copies = (lambda batch: batch), Copies(self.streams)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.save_at and self.path is not None:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("save_at", [1, 2, 3])
def test_a_run_goes_on_after_what_it_consumed_and_not_after_what_it_read(save_at: int, tmp_path: Path) -> None:
    """A batch that was copied ahead of a checkpoint would be left out by the run that goes on from it."""

    def run(ckpt_path: Path | None = None, *callbacks: Callback) -> Classifier:
        torch.manual_seed(0)
        module = Classifier(dropout=0.3)
        trainer = Trainer(**QUIET, max_epochs=2, accumulate_grad_batches=2, callbacks=list(callbacks))
        trainer.fit(module, loader(24, shuffle=True, num_workers=2), ckpt_path=ckpt_path)
        return module

    whole, saving = run(), Ahead(tmp_path / "one", save_at)
    assert are_equal(weights(run(None, saving)), weights(whole))
    assert saving.streams.log
    assert are_equal(weights(run(tmp_path / "one", Ahead())), weights(whole))
