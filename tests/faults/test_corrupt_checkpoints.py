"""Checkpoints that were damaged after they were written: always found, and the newest whole one is used instead."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drivetrain import CheckpointError, Fabric
from drivetrain.checkpoint.commit import commit, temporary_directory
from drivetrain.checkpoint.manifest import Manifest, write_manifest
from drivetrain.checkpoint.verify import problems
from drivetrain.checkpoint.write import write_tensors

NUM_TRIALS = 64
SHARDS = ("shard-0.pt", "shard-1.pt", "shard-2.pt")
Damage = Callable[[Path, random.Random], object]


def flip_a_bit(checkpoint: Path, draw: random.Random) -> None:
    path = _any_file(checkpoint, draw)
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut_a_tail(checkpoint: Path, draw: random.Random) -> None:
    path = _any_file(checkpoint, draw)
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def lose_a_file(checkpoint: Path, draw: random.Random) -> None:
    _any_file(checkpoint, draw).unlink()


def swap_two_files(checkpoint: Path, draw: random.Random) -> None:
    """Of this checkpoint, or with the file of the same name of the one before: each is good by itself."""
    if draw.random() < 0.5:
        one, other = (checkpoint / name for name in draw.sample(SHARDS, 2))
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(kept)
    else:
        name = draw.choice([*SHARDS, "state.pt", "drivetrain-manifest.json"])
        shutil.copyfile(checkpoint.with_name("step=2") / name, checkpoint / name)


def _any_file(checkpoint: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in checkpoint.iterdir() if path.is_file()))


def save(root: Path, step: int) -> None:
    """A model and three shards, in which every number is the step."""
    state = {"model": {"weight": torch.full((2, 3), float(step)), "bias": torch.full((2,), float(step))}, "step": step}
    temporary = temporary_directory(root / f"step={step}")
    files = [write_tensors(temporary / "state.pt", state)]
    files += [
        write_tensors(temporary / name, {"share": torch.full((50,), float(step)), "number": number})
        for number, name in enumerate(SHARDS)
    ]
    write_manifest(temporary, Manifest(step=step, world_size=3, files=files))
    commit(temporary, root / f"step={step}")


@contextmanager
def opened() -> Iterator[tuple[Fabric, Any, nn.Linear]]:
    fabric = Fabric(accelerator="cpu", devices=1)
    module = nn.Linear(3, 2)
    try:
        yield fabric, fabric.setup(module), module
    finally:
        fabric.close()


@pytest.mark.parametrize("damage", [flip_a_bit, cut_a_tail, lose_a_file, swap_two_files])
def test_damage_is_always_found_and_the_newest_whole_one_is_used(damage: Damage, tmp_path: Path) -> None:
    """A weight that is not what was trained gets into a run; or the run does not start though a good one is there."""
    good = tmp_path / "good"
    for step in (1, 2, 3):
        save(good, step)
    draw = random.Random(f"{damage}"[:15])
    with opened() as (fabric, model, module):
        for trial in range(NUM_TRIALS):
            root = tmp_path / "trial"
            shutil.copytree(good, root)
            damage(root / "step=3", draw)
            state = {"model": model, "step": 0}
            with pytest.raises(CheckpointError) as caught:
                fabric.load(root / "step=3", state)
            assert caught.value.code in ("checkpoint-corrupt", "checkpoint-missing"), (trial, caught.value)
            assert state["step"] == 0 and not (module.weight == 3).any()
            assert problems(root / "step=3", is_thorough=True)
            with pytest.warns(UserWarning, match="step=2 is used; passed over:") as warned:
                fabric.load(root, state)
            assert "step=3: " in str(warned[0].message)
            assert state["step"] == 2 and (module.weight == 2).all() and (module.bias == 2).all(), trial
            shutil.rmtree(root)


def test_without_damage_the_newest_one_is_used_without_a_word(tmp_path: Path) -> None:
    """The test above would pass if the newest one were never used."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    with opened() as (fabric, model, module), warnings.catch_warnings():
        warnings.simplefilter("error")
        fabric.load(tmp_path, {"model": model})
        assert (module.weight == 3).all() and fabric.latest(tmp_path) == tmp_path / "step=3"


def test_where_no_checkpoint_is_whole_none_is_loaded(tmp_path: Path) -> None:
    """A folder in which all are damaged would give the least damaged one."""
    draw = random.Random(0)
    for step in (1, 2):
        save(tmp_path, step)
        flip_a_bit(tmp_path / f"step={step}", draw)
    with opened() as (fabric, model, _):
        with pytest.warns(UserWarning, match="No checkpoint is used; passed over:"):
            assert fabric.latest(tmp_path) is None
        with pytest.warns(UserWarning), pytest.raises(CheckpointError) as caught:
            fabric.load(tmp_path, {"model": model})
        assert caught.value.code == "checkpoint-corrupt"
        assert fabric.latest(tmp_path / "nothing") is None
