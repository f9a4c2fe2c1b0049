"""R-07: the storage of one rank hangs for a while, fails once, or fails whenever it is written to."""

from __future__ import annotations

import errno
import os
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torch.utils.data import DataLoader

from drivetrain import Callback, ModelCheckpoint
from drivetrain.checkpoint.verify import list_checkpoints, problems
from drivetrain.testing.fixtures import make_mlp
from tests.faults.checks import first_step_s
from tests.faults.rows import Row
from tests.faults.short_run import DATA, Net, Outcome, fit, in_ranks

KINDS = ("hangs", "fails once", "fails always")
EVERY, FAULT_AT, STEPS = 10, 20, 33
LAST_HUNG = 29  # the step before that of the next save, which waits for this one
HANGS_S = 5.0
BLOCKED_S = 0.02
LONGER_S = 0.1  # the writers need cores, too, of which there may be few
TRIES = 3


class Wide(Net):
    """Its weights and their momenta are 10 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp(num_hidden=48_000)
        self.held_s: dict[int, float] = {}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Gradients are not kept: there are many."""


@dataclass
class Storage(Callback):
    """What one rank writes to in the second save; and how long its steps take.

    Attributes:
        kind: One of `KINDS`; without one nothing happens.
        rank: Which.
        is_async: Training goes on while it hangs.
        places: Where the save was tried; each try has a place of its own.
        failed_s: When it failed last.
        told_s: When the error came.
        failed_at: Steps done when it failed last.
        began_s: When each step began.
    """

    kind: str
    rank: int
    is_async: bool
    places: set[Path] = field(default_factory=set)
    failed_s: float = 0.0
    told_s: float = 0.0
    failed_at: int = 0
    began_s: dict[int, float] = field(default_factory=dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def write(file: BinaryIO, data: bytes | memoryview) -> None:
            place = Path(file.name).parent
            if f"step={FAULT_AT}." in place.name:
                is_first = place not in self.places
                self.places.add(place)
                self._harm(trainer, is_first)
            file.write(data)

        if trainer.global_rank == self.rank:
            trainer.run.fabric.saves.write = write

    def _harm(self, trainer: Any, is_first: bool) -> None:
        if self.kind == "hangs" and is_first:
            end = time.monotonic() + (HANGS_S if self.is_async else 0.5)
            while time.monotonic() < end and not (self.is_async and trainer.global_step >= LAST_HUNG):
                time.sleep(0.002)
        elif self.kind == "fails always" or (self.kind == "fails once" and len(self.places) == 1):
            self.failed_s, self.failed_at = time.time(), trainer.global_step
            raise OSError(errno.EIO, "a fault of the test")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.began_s[trainer.global_step] = time.monotonic()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.told_s = time.time()


class Keeper(ModelCheckpoint):
    """Notes for how long it holds up each step."""

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        began_s = time.monotonic() - waited_for_a_core_s()
        super().on_step_end(trainer, pl_module)
        pl_module.held_s[trainer.global_step] = time.monotonic() - waited_for_a_core_s() - began_s


def waited_for_a_core_s() -> float:
    """For how long this thread could run and did not."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0


def train(kind: str, rank: int, directory: Path, *, is_async: bool) -> list[Outcome]:
    """In two ranks."""
    storage = Storage(kind, rank, is_async)
    keeper = Keeper(
        directory / "kept", "{step}", every_n_train_steps=EVERY, save_top_k=-1, save_async=is_async
    )  # fmt: skip

    def in_rank() -> Outcome:
        net = Wide()
        outcome = fit(
            net, DataLoader(DATA, batch_size=4), max_epochs=-1, max_steps=2000 if kind == KINDS[2] else STEPS,
            callbacks=[storage, keeper], notes=vars(storage), default_root_dir=directory,
        )  # fmt: skip
        outcome.weights = {}
        outcome.notes["held_s"] = net.held_s
        return outcome

    return in_ranks(in_rank, directory)


def trial(seed: int, directory: Path) -> None:
    """One kind after the other, on either rank; in the way of training, or beside it."""
    draw = random.Random(seed)
    kind, is_async, rank = KINDS[seed % len(KINDS)], seed // len(KINDS) % 2 == 0, draw.randrange(2)
    print(f"{kind} on rank {rank}, saved {'beside' if is_async else 'between'} steps")
    outcomes = train(kind, rank, directory, is_async=is_async)
    codes, steps = [one.code for one in outcomes], {one.steps for one in outcomes}
    assert len(steps) == 1, f"ranks ended after different steps: {steps}"
    paths = {path.name for path in list_checkpoints(directory / "kept")}
    wrong = [problem for path in list_checkpoints(directory / "kept") for problem in problems(path)]
    assert not wrong and not list((directory / "kept").glob(".*")), f"{wrong} {os.listdir(directory / 'kept')}"
    tries = len(outcomes[rank].notes["places"])
    if kind == "fails always":
        assert set(codes) == {"checkpoint-write", "checkpoint-other-rank"}, [one.error for one in outcomes]
        assert tries == TRIES, f"tried {tries} times"
        assert paths == {f"step={EVERY}.ckpt"}, paths
        check_told(outcomes, rank, is_async=is_async)
        return
    assert codes == ["", ""], [one.error for one in outcomes]
    assert tries == (2 if kind == "fails once" else 1), f"tried {tries} times"
    assert paths == {f"step={step}.ckpt" for step in (EVERY, FAULT_AT, 3 * EVERY, STEPS)}, paths
    assert {one.digest for one in outcomes} == {undisturbed(directory.parent)}, "other weights or momenta"
    if is_async:
        check_not_blocked(outcomes)


def undisturbed(root: Path) -> str:
    """The digest of a run to which nothing happens; made once."""
    path = root / "reference" / "digest"
    if not path.exists():
        path.parent.mkdir()
        outcomes = train("", 0, path.parent, is_async=False)
        path.write_text(outcomes[0].digest)
    return path.read_text()


def check_told(outcomes: list[Outcome], rank: int, *, is_async: bool) -> None:
    """All ranks hear of it soon after the last try; at the end of the step in whose way the save was."""
    failed_s, failed_at = outcomes[rank].notes["failed_s"], outcomes[rank].notes["failed_at"]
    later_s = max(one.notes["told_s"] for one in outcomes) - failed_s
    done = outcomes[0].steps - failed_at
    print(f"all ranks know it {later_s * 1000:.0f} ms and {done} steps after the last try")
    assert later_s <= first_step_s() / 10, f"told {later_s:.1f} s after the last try"
    assert is_async or done == 0, f"{done} steps were made after a save that failed in their way"


def check_not_blocked(outcomes: list[Outcome]) -> None:
    """No step is held up by the write beside it, and they take about as long as those before."""
    beside = range(FAULT_AT + 1, LAST_HUNG)
    held_s = max(one.notes["held_s"][step] for one in outcomes for step in beside)
    took_s = {
        step: max(one.notes["began_s"][step + 1] - one.notes["began_s"][step] for one in outcomes)
        for step in range(3, LAST_HUNG)
    }  # fmt: skip
    before_s = [took_s[step] for step in range(3, FAULT_AT - 1) if step != EVERY - 1]
    beside_s = [took_s[step] for step in beside]
    print(
        f"a step is held up for {1000 * held_s:.1f} ms at most; it takes {in_ms(before_s)} before the save, "
        f"{in_ms(beside_s)} beside it",
    )  # fmt: skip
    factor = first_step_s() / 10
    assert held_s <= BLOCKED_S * factor, f"held up for {1000 * held_s:.1f} ms"
    longer_s = statistics.median(beside_s) - statistics.median(before_s)
    assert longer_s <= LONGER_S * factor, f"steps take {1000 * longer_s:.1f} ms longer beside the write"


def in_ms(seconds: list[float]) -> str:
    """The median, and the longest."""
    return f"{1000 * statistics.median(seconds):.1f} ms (at most {1000 * max(seconds):.1f})"


ROW = Row("R-07", "storage of one rank that hangs, fails once or fails always", trial, trials=30, smoke=3, timeout_s=60)
