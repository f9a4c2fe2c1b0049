"""Saves that are killed: what a rank writes, the moment at which it dies, and what may be there afterwards."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from drivetrain import FSDP, RankFailedError, SingleDevice
from drivetrain.base.files import Write, write_plainly
from drivetrain.base.rng import capture_rng
from drivetrain.checkpoint.verify import newest_valid, problems
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.fabric.save import add_share, load_checkpoint, write_checkpoint
from drivetrain.launch.launch_function import launch_function
from drivetrain.strategies.strategy import Strategy

CPU = torch.device("cpu")
SHAPE = (61, 67)


@dataclass(frozen=True)
class Death:
    """When a rank is killed.

    Attributes:
        rank: Which.
        offset: After so many bytes that it has written.
        after_s: After so many seconds, instead.
    """

    rank: int
    offset: int | None = None
    after_s: float = 0.0


class CountingWrite:
    """A `Write` that counts bytes and kills its process at one of them: the ones before are in the file."""

    def __init__(self, offset: int | None = None) -> None:
        self.offset = offset
        self.num_bytes = 0

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        data = memoryview(data).cast("B")
        if self.offset is not None and self.num_bytes + len(data) > self.offset:
            file.write(data[: self.offset - self.num_bytes])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.num_bytes += len(data)
        file.write(data)


def save_number(strategy: Strategy, path: Path, number: int, write: Write = write_plainly) -> None:
    """Save a state in which every number is this one.

    Ranks: all.
    """
    model = torch.nn.ParameterDict({f"weight_{index}": torch.full(SHAPE, float(number)) for index in range(3)})
    state = {"model": strategy.prepare(Constant(model)), "number": number}
    own = {"number": number, "rng": capture_rng()}
    fill = partial(add_share, strategy, state=state, of_rank=own)
    write_checkpoint(
        strategy.collectives, str(path), lambda files: fill(files), step=number,
        extra={"strategy": strategy.traits.name}, write=write,
    )  # fmt: skip


class Constant(torch.nn.Module):
    """It holds parameters."""

    def __init__(self, parameters: torch.nn.ParameterDict) -> None:
        super().__init__()
        self.kept = parameters

    def forward(self) -> Any:
        """The sum of all."""
        return sum(p.sum() for p in self.kept.values())


def read_number(path: Path) -> int:
    """The number of a state; an error if it is not the same everywhere."""
    strategy = SingleDevice()
    strategy.open(current_cluster(), CPU)
    module = Constant(torch.nn.ParameterDict({f"weight_{index}": torch.zeros(SHAPE) for index in range(3)}))
    rest, _ = load_checkpoint(strategy, path, {"model": strategy.prepare(module), "number": 0})
    strategy.close()
    found = {float(value) for p in module.parameters() for value in p.detach().unique()} | {float(rest["number"])}
    assert len(found) == 1, f"a mixture of {sorted(found)}"
    return int(found.pop())


def save_in_ranks(num_ranks: int, saves: Mapping[int, Path], death: Death | None) -> list[int]:
    """Save numbers one after the other, in processes; in the last save one may die. Bytes of it, by rank."""

    def in_rank() -> int:
        strategy = FSDP() if num_ranks > 1 else SingleDevice()
        strategy.open(current_cluster(), CPU)
        write = CountingWrite()
        for number, path in saves.items():
            write = CountingWrite()
            if death is not None and number == max(saves) and death.rank == strategy.collectives.rank:
                write.offset = death.offset
                if death.offset is None:
                    threading.Thread(target=die_later, args=(death.after_s,), daemon=True).start()
            save_number(strategy, path, number, write)
        strategy.close()
        return write.num_bytes

    return launch_function(in_rank, num_ranks=num_ranks, start="fork", grace_s=1.0)


def die_later(after_s: float) -> None:
    """Kill this process."""
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)


def check_killed_write(seed: int, directory: Path, *, num_ranks: int) -> None:
    """Kill a save of a new checkpoint, or of one that is there, and look at what can be loaded."""
    draw = random.Random(seed)
    is_new, rank = seed % 2 == 0, draw.randrange(num_ranks)
    first, second = directory / "step=1", directory / ("step=2" if is_new else "step=1")
    size_file = directory.parent / f"bytes-{num_ranks}.txt"
    if not size_file.exists():
        sizes = save_in_ranks(num_ranks, {1: directory / "measured" / "step=1"}, None)
        size_file.write_text(" ".join(map(str, sizes)))
    size = int(size_file.read_text().split()[rank])
    death = Death(rank, draw.randrange(size)) if seed % 4 < 3 else Death(rank, None, draw.random() * 0.05)
    print(death, "new" if is_new else "saved again")
    try:
        save_in_ranks(num_ranks, {1: first, 2: second}, death)
        has_ended = True
    except RankFailedError as error:
        has_ended = False
        assert error.exit_code == -signal.SIGKILL, error
    assert not (has_ended and death.offset is not None), "nobody died"
    found, passed_over = newest_valid(directory)
    assert found is not None, passed_over
    number = read_number(found)
    assert number == (2 if has_ended else number) and number in (1, 2)
    visible = [path for path in directory.iterdir() if path.name.startswith("step=") and problems(path)]
    assert not visible, f"{visible} cannot be trusted and has a name"
    # The next save works, and what the dead one left is gone.
    save_in_ranks(num_ranks, {3: directory / "step=3"}, None)
    assert read_number(directory / "step=3") == 3
    hidden = [path.name for path in directory.iterdir() if path.name.startswith(".")]
    assert not hidden, f"left behind: {hidden}"
