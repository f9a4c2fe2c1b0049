"""Saves beside training, on one rank."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch.nn import functional

from drivetrain import CheckpointError
from drivetrain.base.files import hash_file
from drivetrain.checkpoint.verify import problems
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.unit.fabric.raw_loop import open_fabric


class Gate:
    """A `Write` that waits until it is opened, and fails if told to."""

    def __init__(self, *, is_open: bool = False, fails: bool = False) -> None:
        self.fails = fails
        self.is_reached, self.opened = threading.Event(), threading.Event()
        if is_open:
            self.opened.set()

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self.is_reached.set()
        assert self.opened.wait(30)
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)


class Loop:
    """A fabric of one rank that trains a little."""

    def __init__(self) -> None:
        self.fabric = open_fabric()
        net = make_mlp()
        self.model, self.optimizer = self.fabric.setup(net, torch.optim.AdamW(net.parameters()))
        self.batch = tuple(torch.stack(one) for one in zip(*make_dataset(8), strict=True))
        self.extra = {"seen": [0]}
        self.step()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "extra": self.extra, "step": 1}

    def step(self) -> None:
        functional.cross_entropy(self.model(self.batch[0]), self.batch[1]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.extra["seen"].append(1)


@pytest.fixture
def loop() -> Any:
    made = Loop()
    yield made
    made.fabric.close()


def test_what_is_saved_is_what_was_there_when_it_was_asked_for(loop: Loop, tmp_path: Path) -> None:
    """Weights, moments or plain values of a later step in the checkpoint."""
    loop.fabric.save(tmp_path / "waited", loop.state)
    loop.fabric.saves.write = gate = Gate()
    handle = loop.fabric.save(tmp_path / "beside", loop.state, wait=False)
    assert gate.is_reached.wait(30)
    for _ in range(3):
        loop.step()
    assert not handle.is_done and not (tmp_path / "beside").exists()
    gate.opened.set()
    assert handle.wait() and handle.is_done and problems(tmp_path / "beside") == []
    assert hash_file(tmp_path / "beside" / "state.pt") == hash_file(tmp_path / "waited" / "state.pt")


def test_the_next_save_waits_and_says_so_once(loop: Loop, tmp_path: Path) -> None:
    """Two saves that write into each other's memory; or training that is slow for no reason that one could see."""
    saves = loop.fabric.saves
    saves.patience_s, saves.write = 0.0, (gate := Gate())
    loop.fabric.save(tmp_path / "first", loop.state, wait=False)
    opener = threading.Thread(target=lambda: (gate.is_reached.wait(30), gate.opened.set()))
    opener.start()
    with pytest.warns(UserWarning, match="faster than they can be written"):
        loop.fabric.save(tmp_path / "second", loop.state)
    opener.join()
    assert problems(tmp_path / "first") == [] == problems(tmp_path / "second")
    assert not any(one.name == "drivetrain-save" for one in threading.enumerate())


def test_a_failure_is_raised_after_a_later_step(loop: Loop, tmp_path: Path, caplog: Any) -> None:
    """A disk that is full for days while a run believes that it saves."""
    loop.fabric.save(tmp_path / "a", loop.state)
    loop.fabric.saves.write = Gate(is_open=True, fails=True)
    with caplog.at_level(logging.ERROR, "drivetrain"):
        handle = loop.fabric.save(tmp_path / "a", loop.state, wait=False)
        with pytest.raises(CheckpointError, match="No space left") as caught:
            for _ in range(10000):
                loop.step()
                handle.check()
    assert caught.value.code == "checkpoint-write" and handle.has_failed
    assert "was not saved" in caplog.text
    assert problems(tmp_path / "a") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "latest"]
    loop.fabric.saves.write = Gate(is_open=True)
    loop.fabric.save(tmp_path / "a", loop.state)  # told once; the disk has room again


@pytest.mark.parametrize("end", ["save", "load", "close"])
def test_a_failure_that_nobody_looked_at_is_raised_at_the_latest_then(loop: Loop, tmp_path: Path, end: str) -> None:
    """A program that ends well with a checkpoint that is not there."""
    loop.fabric.save(tmp_path / "good", loop.state)
    loop.fabric.saves.write = Gate(is_open=True, fails=True)
    loop.fabric.save(tmp_path / "bad", loop.state, wait=False)
    ends = {
        "save": lambda: loop.fabric.save(tmp_path / "next", loop.state),
        "load": lambda: loop.fabric.load(tmp_path / "good", loop.state),
        "close": loop.fabric.close,
    }
    with pytest.raises(CheckpointError, match="No space left"):
        ends[end]()


def test_another_error_is_not_hidden_by_that_of_a_save(loop: Loop, tmp_path: Path) -> None:
    """The user's own error lost behind one that followed from it."""
    loop.fabric.saves.write = Gate(is_open=True, fails=True)
    with pytest.raises(ZeroDivisionError):
        try:
            loop.fabric.save(tmp_path / "bad", loop.state, wait=False)
            1 / 0  # noqa: B018
        finally:
            loop.fabric.close()


def test_a_state_that_cannot_be_saved_is_refused_at_once(loop: Loop, tmp_path: Path) -> None:
    """An error that names a line of another thread."""
    with pytest.raises(CheckpointError) as caught:
        loop.fabric.save(tmp_path / "a", {"object": object()}, wait=False)
    assert caught.value.code == "checkpoint-plain-data" and not (tmp_path / "a").exists()


def test_memory_is_used_again_by_the_next_save(loop: Loop, tmp_path: Path) -> None:
    """A run that takes more memory with each save."""
    sizes = []
    for number in range(4):
        loop.fabric.save(tmp_path / str(number), loop.state, wait=False).wait()
        sizes.append(loop.fabric.saves.staging.size_bytes)
    assert len(set(sizes)) == 1


def test_what_has_to_follow_a_save_follows_it_alone(loop: Loop, tmp_path: Path) -> None:
    """An old checkpoint deleted for one that never came to be."""
    followed: list[str] = []
    loop.fabric.saves.write = gate = Gate()
    handle = loop.fabric.save(tmp_path / "a", loop.state, wait=False)
    handle.when_saved(lambda: followed.append("a" if (tmp_path / "a").exists() else "too early"))
    assert not followed
    gate.opened.set()
    handle.wait()
    handle.when_saved(lambda: followed.append("late"))
    loop.fabric.saves.write = Gate(is_open=True, fails=True)
    handle = loop.fabric.save(tmp_path / "b", loop.state, wait=False)
    handle.when_saved(lambda: followed.append("b"))
    with pytest.raises(CheckpointError):
        handle.wait()
    handle.when_saved(lambda: followed.append("b"))
    assert followed == ["a", "late"]
