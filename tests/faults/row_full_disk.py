"""R-05: a disk gets full in the middle of a run, and has room again later."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain import Callback
from drivetrain.base.files import write_plainly
from drivetrain.checkpoint.verify import list_checkpoints
from tests.faults.checks import Record, check_checkpoints, check_end, check_went_on, first_step_s
from tests.faults.rows import Row
from tests.faults.small_disk import FullWrite, SmallDisk, room_for
from tests.faults.training import Job
from tests.faults.trial import reference_of, run

PLACES = ("data", "manifest", "latest", "log")
STEPS, ALL_STEPS = 30, 40
NEVER = ALL_STEPS
END_S = 5.0


@dataclass
class FullDisk(Callback):
    """Fills a disk between two steps, and makes room again.

    Attributes:
        directory: Of the run.
        place: What there is no room for.
        disk: That of all ranks; `None`: one that is full for one rank alone.
        rank: Which.
        full_at: Steps done then.
        free_at: Steps done when there is room again.
    """

    directory: Path
    place: str
    disk: SmallDisk | None
    rank: int
    full_at: int
    free_at: int

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        saves = trainer.run.fabric.saves
        is_here = trainer.global_rank == (self.rank if self.disk is None else 0)
        if trainer.global_step == self.full_at:
            saves.settle()
            if is_here and self.disk is not None:
                self.disk.fill(room_for(list_checkpoints(self.directory / "kept")[-1], self.place))
            elif is_here:
                saves.write = FullWrite(self.place)
        elif trainer.global_step == self.free_at and is_here:
            saves.write = write_plainly
            if self.disk is not None:
                self.disk.free()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        pl_module.notes.write("error", error=type(exception).__name__, text=str(exception), step=trainer.global_step)


def trial(seed: int, directory: Path) -> None:
    """In data, manifest, pointer or log; an error, or a warning; in the way of training, or beside it."""
    draw = random.Random(seed)
    place = PLACES[seed % 4]
    is_tolerated, is_async = (seed + seed // 4) % 2 == 1 and place != "log", (seed // 2 + seed // 8) % 2 == 1
    is_shared, rank = place == "log" or draw.random() < 0.5, draw.randrange(2) if place == "data" else 0
    disk = mounted(directory / ("logs" if place == "log" else "kept")) if is_shared else None
    place = "data" if is_shared and disk is None and place == "log" else place
    full_at, free_at = draw.randrange(6, 14), draw.choice((draw.randrange(21, 25), NEVER)) if is_tolerated else NEVER
    save = {"save_async": is_async, "on_save_error": "warn" if is_tolerated else "raise"}
    job = Job(str(directory), max_steps=STEPS, resume="auto", save=save, is_logged=place == "log")
    reference = reference_of(replace(job, max_steps=ALL_STEPS, is_logged=False, save={}), directory.parent)
    print(
        f"no room for {place}{f' on rank {rank}' if disk is None else ''}, saved {'beside' if is_async else 'between'} "
        f"steps, {'a warning' if is_tolerated else 'an error'}, steps {full_at} to {free_at}",
    )  # fmt: skip
    end = run(job, [FullDisk(directory, place, disk, rank, full_at, free_at)])
    ended = time.time()
    check_checkpoints(directory)
    names = [path.name for path in list_checkpoints(directory / "kept")]
    is_pointer = place == "latest" and disk is None
    assert "No space left" in end.console, f"I6: nothing is said\n{end.console}"
    if is_tolerated or is_pointer:
        check_end(end, exit_code=0, says=["`latest` does not lead" if is_pointer else "goes on without a checkpoint"])
        assert (names[-1] == f"step={STEPS}.ckpt") == (free_at < STEPS or is_pointer), names
        assert len(names) <= 3, f"no longer kept, and there: {names}"
    else:
        check_end(end, exit_code=1, says=[])
        due = -(-full_at // job.save_every) * job.save_every + (job.save_every if place == "latest" else 0)
        check_told(Record.read(directory), ended, None if place == "log" else due)
    hidden = [path.name for path in directory.rglob(".*")]
    assert not hidden, f"left behind: {hidden}"
    if disk is not None:
        disk.free()
    check_end(run(replace(job, max_steps=ALL_STEPS)), exit_code=0, says=["resume='auto'"])
    assert (directory / "kept" / f"step={ALL_STEPS}.ckpt").exists(), "the next save did not work"
    check_went_on(directory, reference, save_every=STEPS if is_tolerated or is_async else job.save_every)


def mounted(path: Path) -> SmallDisk | None:
    """A small disk; without the right to mount one, that of one rank has to do."""
    try:
        return SmallDisk(path)
    except OSError as error:
        print(f"no disk can be mounted here: {error}")
        return None


def check_told(record: Record, ended: float, due: int | None) -> None:
    """The error comes soon, on all ranks; that of a save, which was due at a step, after the same step."""
    errors, steps = record.of("error"), record.of("step")
    began = max(line["time"] for line in steps)
    if due is not None:
        began = min(line["time"] for line in steps if line["step"] == due)
        told = {(line["rank"], line["error"], line["step"]) for line in errors}
        assert len({step for _, _, step in told}) == 1, f"the error came at different steps: {told}"
        assert {(rank, kind) for rank, kind, _ in told} == {(0, "CheckpointError"), (1, "CheckpointError")}, told
        assert all("No space left" in line["text"] for line in errors), errors
    print(f"{ended - began:.1f} s to the end of all ranks")
    assert ended - began <= max(END_S, first_step_s() / 2), f"all ranks ended {ended - began:.1f} s later"


ROW = Row("R-05", "a disk gets full, for all ranks or for one", trial, trials=40, smoke=3)
