"""Errors of data, and losses that are inf or nan, say which samples they come from."""

from __future__ import annotations

import gc
import logging
import math
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from drivetrain import NonFiniteError
from drivetrain.data.data_shard import DataShard
from drivetrain.data.loader import Loader
from tests.unit.trainer.runs import Classifier, fit

BAD = 21


class Holes(Dataset[Any]):
    """One sample is not there."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            raise OSError("cannot be read")
        return torch.full((8,), float(index), dtype=torch.float64), index % 4


class Poisoned(Holes):
    """The features of one sample are nan."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), math.nan if index == BAD else 0.1 * index, dtype=torch.float64), index % 4


def place_of_bad(shuffles: bool, *, shard: DataShard | None = None, seed: int = 0) -> tuple[int, list[int]]:
    """In which micro-batch of 4 the sample is, and what else is in it."""
    source = DataLoader(Holes(), batch_size=4, shuffle=shuffles)
    batches = Loader(source, shard or DataShard(0, 1), seed=seed).index_batches()
    assert batches is not None
    return next((index, batch) for index, batch in enumerate(batches) if BAD in batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_names_the_samples(workers: int) -> None:
    """Nobody would find the broken file among millions."""
    place, batch = place_of_bad(False)
    with pytest.raises(OSError, match="cannot be read") as caught:
        fit(Classifier(), DataLoader(Holes(), batch_size=4, num_workers=workers), accumulate_grad_batches=3)
    samples, notes = ", ".join(map(str, batch)), caught.value.__notes__
    del caught  # its traceback holds the workers
    gc.collect()
    assert notes == [f"It came while micro-batch {place} of epoch 0 was read: samples {samples}."]


def test_a_shuffled_rank_names_its_own_samples() -> None:
    """The order of another rank, or of another epoch, would be named."""
    loader = Loader(DataLoader(Holes(), batch_size=4, shuffle=True), DataShard(1, 2), seed=5)
    batches = loader.index_batches()
    assert batches is not None
    loader.set_epoch(0)
    iter(loader)
    assert [loader.samples_text(index) for index in range(len(batches))] == [
        f"samples {', '.join(map(str, batch))}" for batch in batches
    ]
    assert loader.samples_text(len(batches)) == ""


def test_a_step_that_is_skipped_names_its_samples(caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, and one cannot find out what is wrong with the data."""
    _, batch = place_of_bad(False)
    samples = ", ".join(map(str, batch))
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "enable_checkpointing": False}
    data = DataLoader(Poisoned(), batch_size=4)
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="inf or nan"):
        fit(Classifier(), data, nonfinite="skip", **options)
    assert [line for line in caplog.messages if "is skipped" in line] == [
        f"Step 2 is skipped: a loss is inf or nan (samples {samples})."
    ]
    with pytest.raises(NonFiniteError, match=rf"this rank's loss is -?\w+ \(samples {samples}\)"):
        fit(Classifier(), data, nonfinite="error", **options)
