"""One whole save, as a run of two ranks makes it, and children that die in the middle of one."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from drivetrain.base.files import Write, write_plainly
from drivetrain.checkpoint.commit import commit, discard, point_latest, temporary_directory
from drivetrain.checkpoint.manifest import Manifest, read_manifest, write_manifest
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.write import write_tensors

FILES = ("rank-0.pt", "rank-1.pt")


def state_of(value: float) -> dict[str, Any]:
    """A state in which every number is `value`, so that a mix of two saves shows."""
    return {"model": {"weight": torch.full((64, 8), value), "bias": torch.full((8,), value)}, "value": value}


def save(root: Path, step: int, value: float, *, name: str = "", write: Write = write_plainly) -> Path:
    """Save `state_of(value)` at a step and point `latest` to it."""
    final = root / (name or f"step={step}")
    temporary = temporary_directory(final)
    try:
        files = [write_tensors(temporary / file, state_of(value), write=write) for file in FILES]
        write_manifest(temporary, Manifest(step=step, world_size=2, files=files), write=write)
        commit(temporary, final)
        point_latest(root, final.name, write=write)
    except BaseException:
        discard(temporary)
        raise
    return final


def value_in(checkpoint: Path) -> float:
    """The one value that a checkpoint holds in all its files."""
    values = set()
    for record in read_manifest(checkpoint).files:
        state = read_tensors(checkpoint / record.name)
        values |= {state["value"], *state["model"]["weight"].flatten().tolist(), *state["model"]["bias"].tolist()}
    assert len(values) == 1, f"{checkpoint} mixes {values}"
    return float(values.pop())


def hidden_in(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if name.startswith("."))


class ByteCount:
    """A `Write` that counts and, at byte `kill_at`, writes what comes before it and kills the process."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.size_bytes = 0

    def __call__(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if self.kill_at is not None and self.size_bytes + len(data) > self.kill_at:
            file.write(data[: self.kill_at - self.size_bytes])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.size_bytes += len(data)
        file.write(data)


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked child; its exit code is 0, 1 for an exception, or minus the signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dies_before_operation(number: int, function: Callable[[], object]) -> bool:
    """Run a function in a child that is killed before its n-th change of the file system; `False` if it had fewer."""

    def run() -> None:
        seen = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            is_creation = event == "open" and bool(arguments[2] & os.O_CREAT)
            if is_creation or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir"):
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        sys.addaudithook(watch)
        function()

    code = in_child(run)
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def fresh_copies(tree: Path, number: int) -> Iterator[tuple[int, Path]]:
    """Copies of a directory, one for each trial."""
    for trial in range(number):
        copy = tree.with_name(f"{tree.name}-{trial}")
        shutil.copytree(tree, copy)
        yield trial, copy
