"""Where the time of a training went: shown at its end, and kept in the run's folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivetrain.base.files import make_directory, write_text_atomically
from drivetrain.trainer.optimizer_hint import optimizer_hint

NAME = "time_spent.json"
_SHOWN_FROM_S = 10.0  # what is over sooner has nothing to learn


@contextmanager
def timed(run: Any, loop: Any) -> Iterator[None]:
    """A block in which a loop trains; afterwards the profiler says what it found, and rank 0 where the time went."""
    trainer, fabric = run.trainer, run.fabric
    profiler, directory = trainer.profiler, trainer.log_dir or trainer.default_root_dir
    profiler.begin(directory, rank=fabric.global_rank, num_ranks=fabric.world_size)
    with run.timing.of(loop):
        yield
    profiler.describe()
    if trainer.is_global_zero:
        _report(trainer)


def _report(trainer: Any) -> None:
    spent = trainer.time_spent
    if trainer.progress_bar_callback is not None and spent.total_s >= _SHOWN_FROM_S:
        hint = optimizer_hint(spent.seconds, trainer.optimizers)
        print("\n".join([spent.summary(), *([hint] if hint else [])]), file=sys.stderr)
    if trainer.loggers and trainer.loggers[0].log_dir is not None:
        directory = Path(trainer.loggers[0].log_dir)
        make_directory(directory.absolute())
        what = {
            "total_s": spent.total_s, "parts_s": spent.seconds, "steps": trainer.global_step,
            "ranks": trainer.world_size,
        }  # fmt: skip
        write_text_atomically(directory / NAME, json.dumps(what, indent=1) + "\n")
