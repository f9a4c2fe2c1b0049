"""R-01: one rank is killed at a random step; the run is started again by itself."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.checks import check_end, check_exact
from tests.faults.fault import PLACES, Fault
from tests.faults.rows import Row
from tests.faults.training import Job
from tests.faults.trial import reference_of, run


def trial(seed: int, directory: Path) -> None:
    """SIGKILL at a step from 1 to 299, on either rank. Each tenth trial is a script, as users start it."""
    draw = random.Random(seed)
    fault = Fault("kill", draw.randrange(2), draw.randrange(1, 300), draw.choice(PLACES))
    print(fault)
    start = "script" if seed % 10 == 9 else "fork"
    job = Job(str(directory), max_restarts=2, faults=(str(fault),), start=start)
    reference = reference_of(job, directory.parent)
    end = run(job)
    says = [f"rank {fault.rank} of 2 was killed by SIGKILL", "(restart 1 of 2)"]
    check_end(end, exit_code=0, says=says)
    check_exact(directory, reference, save_every=job.save_every)


ROW = Row("R-01", "kill -9 of a rank at a random step, restarts", trial, trials=100, smoke=2)
