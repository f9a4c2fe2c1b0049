"""Disks that fail for a moment are tried again, a bounded number of times; a run may go on without a checkpoint."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from drivetrain import CheckpointError, ConfigError, ModelCheckpoint
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


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_error_that_passes_is_tried_again(ranks: Any, tmp_path: Path, strategy: str) -> None:
    """A network disk that hangs for a moment would end a run of days."""
    told = ranks.run(save, tmp_path / "one", strategy, errno.EIO, 2, 1)
    assert [code for code, _ in told] == ["", ""] and told[1][1] == 3
    assert problems(tmp_path / "one", is_thorough=True) == []


def test_an_error_that_stays_is_an_error_on_all_ranks_after_three_tries(ranks: Any, tmp_path: Path) -> None:
    """A run that hangs on a broken disk, or one rank of it."""
    told = ranks.run(save, tmp_path / "one", "ddp", errno.ESTALE, 100, 0)
    assert told == [("checkpoint-write", 3), ("checkpoint-other-rank", 3)] and list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("save_async", [False, True])
def test_training_may_go_on_without_a_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, save_async: bool
) -> None:
    """A full disk for logs of another job would end a run that nobody watches."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a directory")
    options: dict[str, Any] = {"every_n_train_steps": 2, "save_async": save_async}
    keeper = ModelCheckpoint(blocked / "kept", on_save_error="warn", **options)
    with caplog.at_level(logging.WARNING):
        _, trainer = fit(Classifier(), loader(40), callbacks=keeper, enable_checkpointing=True)
    assert trainer.global_step == 10 and keeper.best_model_path == keeper.last_model_path == ""
    assert sum("Training goes on without a checkpoint" in line for line in caplog.messages) >= 5
    with pytest.raises(CheckpointError):
        fit(Classifier(), loader(40), callbacks=ModelCheckpoint(blocked / "kept", **options), enable_checkpointing=True)


def test_another_policy_is_refused() -> None:
    """A misspelt policy would be found when the disk is full."""
    with pytest.raises(ConfigError, match="on_save_error='ignore'"):
        ModelCheckpoint(on_save_error="ignore")  # type: ignore[arg-type]
