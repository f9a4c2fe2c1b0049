"""What a loop does when its two ranks hold different numbers of batches: trains, raises, or hangs.

python -m benchmarks.exactness_uneven PEER

Run as a program it starts two ranks for each kind of unevenness, which write what came of their training to files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.child import answer
from benchmarks.exactness_loops import LOOPS
from benchmarks.exactness_tasks import (
    UNEVEN_KINDS,
    Snapshots,
    Task,
    exact_uneven_parameters,
    make_uneven_task,
)
from benchmarks.rounds import run_child
from benchmarks.two_ranks import NUM_RANKS, free_port

QUIET_S = 10  # a training that has made no progress for so long, with steps of milliseconds, hangs
START_S = 120  # until the first batch
DIED = {"error": "died without a word"}
_ADDRESS = re.compile(r"\s*\[[^\]]*(?:/|\d\.\d)[^\]]*\](?::\d+)?\s*")  # of a peer, or of a source line


@dataclass(frozen=True)
class Outcome:
    """What a loop did.

    Attributes:
        text: `"error"`, `"hangs"`, or the greatest difference of a parameter.
        difference: That as a number, if the training came to its end.
        note: The error, where it hangs, or what became of samples that did not count once.
    """

    text: str
    difference: float | None
    note: str = ""


def outcomes(name: str) -> dict[str, Outcome]:
    """What one loop does, by kind of unevenness."""
    command = [sys.executable, "-m", "benchmarks.exactness_uneven", name]
    reading = run_child(command, timeout_s=2 * START_S + 60)
    return {kind: judge(kind, ends) for kind, ends in reading.items()}


def judge(kind: str, ends: Sequence[Mapping[str, Any]]) -> Outcome:
    """One outcome of the ends of all ranks: an error before a hang before a difference."""
    for rank, end in enumerate(ends):
        if "error" in end:
            return Outcome("error", None, f"rank {rank}: {end['error']}")
    for rank, end in enumerate(ends):
        if "hangs" in end:
            return Outcome("hangs", None, f"rank {rank} makes no progress for {QUIET_S} s after {end['hangs']} steps")
    exact = exact_uneven_parameters(kind)
    difference = max(abs(a - b) for end in ends for a, b in zip(end["parameters"], exact, strict=True))
    times = Counter(sample for end in ends for sample in end["seen"])
    num_missed = len(make_uneven_task(kind, 0).data) - len(times)
    num_again = sum(times.values()) - len(times)
    said = [f"{num_missed} samples dropped"] if num_missed else []
    said += [f"{num_again} samples count twice" if num_again > 1 else "1 sample counts twice"] if num_again else []
    said += ["ranks differ"] if any(end["parameters"] != ends[0]["parameters"] for end in ends) else []
    return Outcome(f"{difference:.1e}", difference, ", ".join(said))


class Watch:
    """Ends this process if nothing has moved for a while, and writes down that it hung."""

    def __init__(self, task: Task, files: Sequence[Path], rank: int) -> None:
        self._snapshots = Snapshots(task.optimizer)
        self._task = task
        self._files = files
        self._file = files[rank]
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        moved, since = 0, time.monotonic()
        while not self._file.exists():
            time.sleep(0.5)
            num_steps = len(self._snapshots.taken) - 1
            if num_steps + len(self._task.seen) != moved:
                moved, since = num_steps + len(self._task.seen), time.monotonic()
            elif time.monotonic() - since > (QUIET_S if moved else START_S):
                self.end({"hangs": num_steps})

    def end(self, end: dict[str, Any]) -> None:
        """Write down how it ended, and leave when all ranks have an end.

        A script would go on with its next epoch, or save: a rank that is through does not leave the others behind.
        """
        unfinished = self._file.with_suffix(".part")
        unfinished.write_text(json.dumps(end))
        unfinished.rename(self._file)
        limit = time.monotonic() + START_S
        while not all(file.exists() for file in self._files) and time.monotonic() < limit:
            time.sleep(0.1)
        os._exit(0)  # what hangs cannot be taken down


def train_pairs(name: str) -> dict[str, list[Any]]:
    """How two ranks end, for each kind of unevenness; all at the same time, because those that hang take long.

    The ranks are forks of this process, so that nothing is imported again.
    """
    with tempfile.TemporaryDirectory() as directory:
        files = {kind: [Path(directory, f"{kind}-{rank}.json") for rank in range(NUM_RANKS)] for kind in UNEVEN_KINDS}
        ports = {kind: free_port() for kind in UNEVEN_KINDS}
        children = []
        for kind, rank in itertools.product(UNEVEN_KINDS, range(NUM_RANKS)):
            child = os.fork()
            if child == 0:
                try:
                    os.environ.update(_environment(rank, ports[kind]))
                    train_rank(name, kind, rank, files[kind])
                finally:
                    os._exit(1)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return {
            kind: [json.loads(file.read_text()) if file.exists() else DIED for file in own]
            for kind, own in files.items()
        }


def _environment(rank: int, port: int) -> dict[str, str]:
    """As torchrun would set it."""
    size = str(NUM_RANKS)
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def train_rank(name: str, kind: str, rank: int, files: Sequence[Path]) -> None:
    """Train on this rank, write down how it ended, and leave."""
    task = make_uneven_task(kind, rank)
    watch = Watch(task, files, rank)
    try:
        LOOPS[name](task)
    except Exception as error:  # whatever it is, it is the outcome
        first = next(iter(str(error).strip().splitlines()), "")
        watch.end({"error": f"{type(error).__name__}: {_ADDRESS.sub(' ', first).strip()}"})
    numbers = {float(x[0]): index for index, x in enumerate(task.data.tensors[0])}
    seen = [numbers[value] for batch in task.seen for value in batch.tolist()]
    watch.end({"parameters": task.parameter_list(), "seen": seen})


def main() -> None:
    """Train with one loop and print the ends of its ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=LOOPS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    answer(lambda: train_pairs(asked.peer))


if __name__ == "__main__":
    main()
