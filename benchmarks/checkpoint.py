"""What the verification of a checkpoint costs beside its loading.

python -m benchmarks.checkpoint [--size-mb 512] [--rounds 5] [--folder DIR] [--out FILE.md]

A module and its Adam state are saved once. Then, with the files in the page cache and with the files dropped from it:
`load` puts the state into a module and an optimizer and reads every number once, without a look at the manifest;
`verify` compares every checksum; `verify, load` is what `Fabric.load` does; `SHA-256, load` is what it would cost with
the cryptographic hash of the manifest. Readings of one round are taken one after the other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.rounds import say
from benchmarks.table import give_out, markdown, section
from drivetrain import Fabric
from drivetrain.checkpoint.verify import problems
from drivetrain.fabric.save import load_checkpoint, read_checkpoint

WIDTH = 1024


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint")
    parser.add_argument("--size-mb", type=int, default=512, help="of the checkpoint, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default that of temporary files")
    parser.add_argument("--out", help="also write the table here")
    asked = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=asked.folder))
    try:
        readings, size_bytes = measure(folder, asked.size_mb, asked.rounds)
    finally:
        shutil.rmtree(folder)
    rows = []
    for (name, state), seconds in readings.items():
        loads = readings["load", state]
        over = [one / base - 1 for one, base in zip(seconds, loads, strict=True)]
        rows.append(
            [
                name,
                state,
                f"{statistics.median(seconds) * 1e3:.0f}",
                f"{size_bytes / min(seconds) / 1e9:.2f}",
                f"{statistics.median(over):+.0%}" if name.endswith(", load") else "",
            ]
        )
    header = ("what", "files", "median, ms", "GB/s, best", "over load, median of rounds")
    notes = [f"{asked.rounds} rounds; a checkpoint of {size_bytes / 1e6:.0f} MB; torch with 1 thread."]
    text = section("Checkpoints", [markdown(header, rows)], notes, module="benchmarks.checkpoint", arguments=given)
    give_out(text, asked.out)
    return text


def measure(folder: Path, size_mb: int, num_rounds: int) -> tuple[dict[tuple[str, str], list[float]], int]:
    """Seconds of each reading by what is done and where the files are, and the size of the checkpoint."""
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=1)
    num_layers = max(1, round(size_mb * 1e6 / (3 * 4 * WIDTH * WIDTH)))  # weights and two moments
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))
    optimizer = torch.optim.Adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    model, optimizer = fabric.setup(module, optimizer)
    checkpoint = folder / "checkpoint"
    state = {"model": model.prepared, "optimizer": optimizer}
    fabric.save(checkpoint, {"model": model, "optimizer": optimizer})

    def load(*, is_verified: bool = True) -> None:
        read = read_checkpoint if is_verified else load_checkpoint
        read(fabric.strategy, checkpoint, state)
        for own in optimizer.state.values():  # they are read from the disk when they are used
            for value in own.values():
                value.sum()

    def verify(*, is_thorough: bool = False) -> None:
        assert problems(checkpoint, is_thorough=is_thorough) == []

    actions: dict[str, Callable[[], Any]] = {
        "load": load,
        "verify": verify,
        "verify, load": lambda: load(is_verified=False),
        "SHA-256, load": lambda: (verify(is_thorough=True), load()),
    }
    readings: dict[tuple[str, str], list[float]] = {}
    for number in range(num_rounds):
        for where in ("in the page cache", "on the disk"):
            for name, action in actions.items():
                for own in optimizer.state.values():  # what is still mapped would stay in the page cache
                    own.update({key: value.clone() for key, value in own.items()})
                _prepare(checkpoint, is_cached=where == "in the page cache")
                begin = time.perf_counter()
                action()
                seconds = time.perf_counter() - begin
                readings.setdefault((name, where), []).append(seconds)
                say(f"round {number + 1}/{num_rounds}  {name:<14} {where:<18} {seconds * 1e3:8.1f} ms")
    size_bytes = sum(path.stat().st_size for path in checkpoint.iterdir())
    fabric.close()
    return readings, size_bytes


def _prepare(checkpoint: Path, *, is_cached: bool) -> None:
    for path in checkpoint.iterdir():
        if is_cached:
            path.read_bytes()
            continue
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
