"""Ranks that watch each other over a store; here all of them are one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.launch import store_watch
from drivetrain.launch.failure_file import FailureFile
from drivetrain.launch.patience import Patience
from drivetrain.launch.store_watch import StoreWatch

HASTY = Patience(stall_s=1e-9, busy_s=1e-9)


class LeftError(Exception):
    """In place of the end of the process."""


def leave(exit_code: int) -> None:
    """In place of `os._exit`."""
    raise LeftError(exit_code)


def make_watches(folder: Path, *, patience: Patience) -> list[StoreWatch]:
    """Two ranks, each on a machine of its own: nobody looks at the other's process."""
    store = HashStore()
    clusters = [
        ClusterInfo(rank=rank, world_size=2, local_rank=0, local_world_size=1, launched_by="torchelastic")
        for rank in range(2)
    ]
    watches = [StoreWatch(store, one, patience, FailureFile(folder), end=leave) for one in clusters]
    store.set(
        "0",
        '{"counts": {}, "pulse": 0, "is_held": false, "patience": [5, 60, 600], "beat": 0, "pid": 1, "usage": null}',
    )
    store.set(
        "1",
        '{"counts": {}, "pulse": 0, "is_held": false, "patience": [5, 60, 600], "beat": 0, "pid": 1, "usage": null}',
    )
    return watches


def report(begun: int, patience: Patience) -> dict[str, Any]:
    return {"counts": {"group": begun}, "pulse": 0, "is_held": False, "patience": list(vars(patience).values())}


def test_a_verdict_names_the_rank_and_ends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun a stalled rank would be noticed by a timeout only."""
    monkeypatch.setattr(store_watch, "_STACKS_S", 0.0)
    monkeypatch.setattr(store_watch, "_SHOWN_S", 0.0)
    waiting, stalled = make_watches(tmp_path, patience=HASTY)
    stalled.tell(report(1, HASTY))
    assert not waiting.is_condemned()
    waiting._watch._look_s = 0.0
    with pytest.raises(LeftError):
        for _ in range(3):
            waiting.tell(report(2, HASTY))
    assert waiting.is_condemned() and stalled.is_condemned()
    said = capsys.readouterr().err
    assert "drivetrain.RankFailedError: [rank-stalled] rank 1 of 2 has stalled" in said
    assert "test_store_watch.py" in said
    (written,) = tmp_path.iterdir()
    assert f"{os.getpid()}.txt" in written.name and "CAUSE: rank 1 has stalled" in written.read_text()
    with pytest.raises(LeftError):
        stalled.tell(report(1, HASTY))
    assert capsys.readouterr().err == ""


def test_ranks_that_move_go_on(tmp_path: Path) -> None:
    """A healthy run would be ended."""
    watches = make_watches(tmp_path, patience=Patience())
    for step in range(5):
        for watch in watches:
            watch.tell(report(step, Patience()))
    assert not watches[0].is_condemned()
    assert list(tmp_path.iterdir()) == []
