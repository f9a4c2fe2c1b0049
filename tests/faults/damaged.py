"""Ways to damage a checkpoint that was written, and what has to happen then."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain import CheckpointError, Fabric
from drivetrain.checkpoint.commit import commit, temporary_directory
from drivetrain.checkpoint.manifest import Manifest, write_manifest
from drivetrain.checkpoint.verify import problems
from drivetrain.checkpoint.write import write_tensors

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


DAMAGES: tuple[Damage, ...] = (flip_a_bit, cut_a_tail, lose_a_file, swap_two_files)


def check_damage(good: Path, root: Path, damage: Damage, draw: random.Random, opened_fabric: Any) -> None:
    """Damage the newest of three checkpoints: nothing of it is used, and the one before is."""
    fabric, model, module = opened_fabric
    shutil.copytree(good, root)
    damage(root / "step=3", draw)
    state = {"model": model, "step": 0}
    try:
        fabric.load(root / "step=3", state)
    except CheckpointError as error:
        assert error.code in ("checkpoint-corrupt", "checkpoint-missing"), error
    else:
        raise AssertionError("the damage was not found")
    assert state["step"] == 0 and not (module.weight == 3).any(), "something of a damaged checkpoint was used"
    assert problems(root / "step=3", is_thorough=True), "not found by SHA-256"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fabric.load(root, state)
    said = str(caught[0].message)
    assert "step=2 is used; passed over:" in said and "step=3: " in said, said
    assert state["step"] == 2 and (module.weight == 2).all() and (module.bias == 2).all(), "not the newest whole one"
    shutil.rmtree(root)
