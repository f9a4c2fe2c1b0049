"""Disks that may not be written, or are full for shards: an error on all ranks, the last good checkpoint, nothing left.

Disks that get full for whole replicas are a row of faults, `row_full_disk.py`.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.checkpoint.verify import problems
from tests.ranks.open_fabric import error_of, open_fabric

WAITS = pytest.mark.parametrize("waits", [True, False])


def save_on(fabric: Any, path: Path, width: int, *, waits: bool, fails: bool = False) -> None:
    """Save a network of a size. A save beside training that is to fail is looked at after each of some steps."""
    torch.manual_seed(0)
    model = fabric.setup(torch.nn.Linear(width, width))
    handle = fabric.save(path, {"model": model, "step": width}, wait=waits)
    for _ in range(10**5 if fails else 0):
        model(torch.ones(1, width)).sum().backward()
        handle.check()
    handle.wait()


def check_failed(told: Sequence[tuple[str, str, str]], text: str) -> None:
    """Every rank has an error of checkpoints, and one of them says why."""
    assert {kind for kind, _, _ in told} == {"CheckpointError"}
    assert {code for _, code, _ in told} <= {"checkpoint-write", "checkpoint-other-rank"}
    assert all(text in said for _, _, said in told), told


@contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """No file of this process can grow further, as on a disk of its own that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@WAITS
def test_a_disk_that_is_full_for_all_ranks_with_shards(ranks: Any, small_disk: Path, waits: bool) -> None:
    """A run that goes on without checkpoints; half of one; or a full disk that stays full after the failure."""

    def in_rank() -> list[Any]:
        told = []
        with open_fabric(strategy="fsdp") as fabric:
            for name, width in [("good", 32), ("bad", 200), ("next", 40)]:
                told.append(
                    error_of(partial(save_on, fabric, small_disk / name, width, waits=waits, fails=width == 200))
                )
        return told

    good, bad, after = zip(*ranks.run(in_rank), strict=True)
    check_failed(bad, "No space left")
    assert {kind for kind, _, _ in (*good, *after)} == {""}
    assert sorted(os.listdir(small_disk)) == ["good", "latest", "next"]
    assert problems(small_disk / "good") == [] == problems(small_disk / "next")


@WAITS
@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_for_one_rank_with_shards(ranks: Any, tmp_path: Path, rank: int, waits: bool) -> None:
    """The other ranks wait for it, or believe that there is a checkpoint."""

    def in_rank() -> tuple[str, str, str]:
        with open_fabric(strategy="fsdp") as fabric:
            save_on(fabric, tmp_path / "one", 32, waits=True)
            before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            with limited_files(16 * 1024 if fabric.global_rank == rank else before):
                told = error_of(partial(save_on, fabric, tmp_path / "one", 200, waits=waits, fails=True))
            save_on(fabric, tmp_path / "next", 40, waits=waits)
            return told

    check_failed(ranks.run(in_rank), "File too large")
    assert problems(tmp_path / "one") == [] == problems(tmp_path / "next")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@WAITS
def test_a_disk_that_may_not_be_written(ranks: Any, small_disk: Path, waits: bool) -> None:
    """An error on rank 0 alone, for which the others wait."""

    def in_rank() -> tuple[str, str, str]:
        with open_fabric() as fabric:
            save_on(fabric, small_disk / "good", 32, waits=waits)
            fabric.barrier()
            if fabric.is_global_zero:
                subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
            fabric.barrier()
            return error_of(partial(save_on, fabric, small_disk / "bad", 32, waits=waits, fails=True))

    check_failed(ranks.run(in_rank), "Read-only file system")
    assert sorted(os.listdir(small_disk)) == ["good", "latest"] and problems(small_disk / "good") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
@WAITS
def test_a_directory_of_somebody_else(ranks: Any, tmp_path: Path, waits: bool) -> None:
    """A traceback of some thread instead of the directory's name."""

    def in_rank() -> tuple[str, str, str]:
        with open_fabric() as fabric:
            save_on(fabric, tmp_path / "good", 32, waits=waits)
            fabric.barrier()
            os.seteuid(65534)
            try:
                return error_of(partial(save_on, fabric, tmp_path / "bad", 32, waits=waits, fails=True))
            finally:
                os.seteuid(0)

    check_failed(ranks.run(in_rank), "Permission denied")
    assert sorted(os.listdir(tmp_path)) == ["good", "latest"] and problems(tmp_path / "good") == []
