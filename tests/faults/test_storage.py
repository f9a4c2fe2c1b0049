"""Which errors of a disk are tried again, and what is said of a run that goes on without a checkpoint.

Storage that hangs or fails beside a whole run is a row of faults, `row_slow_storage.py`.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from drivetrain import ConfigError, ModelCheckpoint
from drivetrain.checkpoint.verify import problems
from drivetrain.fabric.save import add_share, write_checkpoint
from tests.ranks.open_fabric import error_of, open_fabric
from tests.unit.trainer.runs import Classifier, fit, loader


class Fails:
    """A `Write` that fails with an error in its first so many saves."""

    def __init__(self, code: int, num_failures: int) -> None:
        self.code = code
        self.num_failures = num_failures
        self.places: set[Path] = set()  # each save has one of its own

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self.places.add(Path(file.name).parent)
        if len(self.places) <= self.num_failures:
            raise OSError(self.code, "it fails")
        file.write(data)


def save(path: Path, strategy: Any, code: int, num_failures: int, failing_rank: int) -> tuple[Any, int]:
    """In a rank: what comes of a save, and how often it was tried."""
    with open_fabric(strategy=strategy) as fabric:
        model = fabric.setup(torch.nn.Linear(8, 8))
        write = Fails(code, num_failures if fabric.global_rank == failing_rank else 0)

        def begin() -> None:
            write_checkpoint(
                fabric.collectives, str(path), lambda files: add_share(fabric.strategy, files, {"model": model}, 1),
                step=1, extra={}, write=write,
            )  # fmt: skip

        return error_of(begin)[1], len(write.places)


def test_an_error_that_passes_is_tried_again_with_shards(ranks: Any, tmp_path: Path) -> None:
    """A network disk that hangs for a moment would end a run of days."""
    told = ranks.run(save, tmp_path / "one", "fsdp", errno.EIO, 2, 1)
    assert [code for code, _ in told] == ["", ""] and told[1][1] == 3
    assert problems(tmp_path / "one", is_thorough=True) == []


def test_a_full_disk_is_not_tried_again(tmp_path: Path) -> None:
    """Trying again fills it again, and others have to wait."""
    assert save(tmp_path / "one", None, errno.ENOSPC, 100, 0) == ("checkpoint-write", 1)


def test_a_checkpoint_whose_pointer_cannot_be_moved_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be called not made, and never be deleted, since nobody knows of it."""

    class NoPointer(Fails):
        def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
            if "latest" in Path(file.name).name:
                super().__call__(file, data)
            file.write(data)

    with open_fabric() as fabric:
        fabric.saves.write = NoPointer(errno.ENOSPC, 1)
        fabric.save(tmp_path / "one", {"step": 1})
    assert problems(tmp_path / "one") == [] and sorted(tmp_path.iterdir()) == [tmp_path / "one"]
    assert "one is saved, but `latest` does not lead to it" in caplog.text


def test_a_run_without_any_checkpoint_may_go_on_and_knows_that_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that leads nowhere would be said to be that of the best weights."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a directory")
    keeper = ModelCheckpoint(blocked / "kept", every_n_train_steps=2, on_save_error="warn")
    with caplog.at_level(logging.WARNING):
        _, trainer = fit(Classifier(), loader(40), callbacks=keeper, enable_checkpointing=True)
    assert trainer.global_step == 10 and keeper.best_model_path == keeper.last_model_path == ""
    assert sum("Training goes on without a checkpoint" in line for line in caplog.messages) >= 5


def test_another_policy_is_refused() -> None:
    """A misspelt policy would be found when the disk is full."""
    with pytest.raises(ConfigError, match="on_save_error='ignore'"):
        ModelCheckpoint(on_save_error="ignore")  # type: ignore[arg-type]
