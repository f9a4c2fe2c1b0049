"""R-02: a run in which ranks are killed again and again."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.checks import Record, check_end, check_exact
from tests.faults.fault import PLACES, Fault
from tests.faults.rows import Row
from tests.faults.training import Job
from tests.faults.trial import reference_of, run

MOST = 30


def trial(seed: int, directory: Path) -> None:
    """SIGKILL after about 20 steps of each attempt, up to 30 times; as many restarts are allowed."""
    draw = random.Random(seed)
    gaps = [1 + int(draw.expovariate(1 / 20)) for _ in range(MOST)]
    faults = [
        Fault("kill", draw.randrange(2), gap, draw.choice(PLACES), attempt=attempt, is_after=True)
        for attempt, gap in enumerate(gaps)
    ]
    job = Job(str(directory), max_restarts=MOST, faults=tuple(map(str, faults)))
    reference = reference_of(job, directory.parent)
    end = run(job, timeout_s=280)
    came = len(Record.read(directory).of("fault"))
    print(came, "kills")
    check_end(end, exit_code=0, says=[f"(restart {number} of {MOST})" for number in range(1, came + 1)])
    assert f"(restart {came + 1} of" not in end.console, "I6: a restart that nothing had asked for"
    check_exact(directory, reference, save_every=job.save_every)


ROW = Row("R-02", "many kills in one run", trial, trials=10, smoke=1, timeout_s=300)
