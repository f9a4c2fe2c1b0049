"""R-13: a rank leaves with exit code 0 in the middle, which is a failure."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from tests.faults.checks import check_end, check_exact
from tests.faults.fault import PLACES, Fault
from tests.faults.rows import Row
from tests.faults.training import Job
from tests.faults.trial import reference_of, run


def trial(seed: int, directory: Path) -> None:
    """Without restarts the launcher fails and says why; the same job, started again with resume="auto", goes on."""
    draw = random.Random(seed)
    fault = Fault("exit", draw.randrange(2), draw.randrange(1, 300), draw.choice(PLACES))
    print(fault)
    job = Job(str(directory), faults=(str(fault),), resume="auto")
    reference = reference_of(job, directory.parent)
    end = run(job)
    check_end(end, exit_code=1, says=[f"rank {fault.rank} of 2 left with exit code 0 before it had finished"])
    check_end(run(replace(job, faults=())), exit_code=0, says=["resume='auto'"])
    check_exact(directory, reference, save_every=job.save_every)


ROW = Row("R-13", "os._exit(0) of a rank in the middle", trial, trials=20, smoke=1)
