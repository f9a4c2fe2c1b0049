"""R-14: the run goes on with another number of ranks, twice, in the middle of an epoch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from tests.faults.checks import Record, check_checkpoints, check_end, check_equal_to, check_repeated, check_samples
from tests.faults.fault import PLACES, Fault
from tests.faults.rows import Row
from tests.faults.training import Job
from tests.faults.trial import reference_of, run

WORLDS = ((2, 1, 2), (4, 3, 1))


def trial(seed: int, directory: Path) -> None:
    """2, 1, 2 or 4, 3, 1 ranks, ended by a kill or by request; a global batch, or windows of a fixed size."""
    draw = random.Random(seed)
    worlds = WORLDS[seed % 2]
    is_fixed = seed // 2 % 2 == 1
    window = {"accumulate_grad_batches": 3} if is_fixed else {"global_batch_size": 24, "micro_batch_size": 4}
    alone = {"accumulate_grad_batches": 3 * worlds[0]} if is_fixed else window
    job = Job(str(directory), resume="auto", is_random=False, window=window, max_steps=90)
    reference = reference_of(replace(job, devices=1, window=alone), directory.parent)
    ends = sorted(draw.sample(range(5, 85), 2))
    for world, step in zip(worlds, [*ends, None], strict=True):
        faults: tuple[str, ...] = ()
        exit_code = 0
        if step is not None:
            kind = draw.choice(("kill", "stop"))
            place = draw.choice(PLACES) if kind == "kill" else "on_step_end"
            exit_code = 0 if kind == "stop" else (1 if world > 1 else -9)
            faults = (str(Fault(kind, draw.randrange(world), step, place)),)
        print(world, *faults)
        check_end(run(replace(job, devices=world, faults=faults)), exit_code=exit_code, says=["resume='auto'"])
    found, expected = Record.read(directory), Record.read(reference)
    check_samples(found, expected)
    check_equal_to(directory, reference, tolerance=1e-9)
    check_repeated(found, most=job.save_every)
    check_checkpoints(directory)


ROW = Row("R-14", "another number of ranks: 2, 1, 2 and 4, 3, 1", trial, trials=50, smoke=3)
