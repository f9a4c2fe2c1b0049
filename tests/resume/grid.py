"""The grid of resumes: every optimizer step, in every hook that follows it, for each kind of data and surroundings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drivetrain.testing.same_run import SameRun, Stop
from tests.resume.training import Case, make_run, numbers_of

HOOKS = ("on_step_end", "on_train_batch_end", "on_validation_end", "on_train_epoch_end")
WORKERS = [(0, False), (2, False), (2, True)]
HAS_STATEFUL_LOADER = find_spec("torchdata") is not None

DATA = [
    Case(data=data, workers=workers, is_persistent=is_persistent)
    for data in ("map", "own-sampler", "stream")
    for workers, is_persistent in WORKERS
] + [Case(data="map", workers=1), Case(data="stateful"), Case(data="batches")]
if HAS_STATEFUL_LOADER:
    DATA += [Case(data="stateful-loader"), Case(data="stateful-loader", workers=2)]
WINDOWS = [
    Case(accumulate=3), Case(accumulate=1), Case(accumulate=3, remainder="carry"), Case(accumulate=3, remainder="drop"),
    Case(options=(("global_batch_size", 8), ("micro_batch_size", 3), ("accumulate_grad_batches", 1))),
    Case(data="stream", accumulate=3, remainder="carry"), Case(accumulate=8),
]  # fmt: skip
AROUND = [Case(around=around) for around in ("plateau", "ema", "stopping", "steps", "scaler", "val")] + [
    Case(options=(("val_check_interval", 1.0),)), Case(options=(("val_check_interval", 3),)),
    Case(options=(("limit_train_batches", 5), ("val_check_interval", 0.5))),
    Case(options=(("gradient_clip_val", 0.1), ("log_every_n_steps", 2))),
]  # fmt: skip
CASES = [*DATA, *WINDOWS, *AROUND]
RANKS_CASES = [Case(), Case(workers=2), Case(data="own-sampler"), Case(data="stateful"), Case(around="ema")]


@contextmanager
def check_of(case: Case, directory: Path, **options: Any) -> Iterator[SameRun]:
    """Runs of a case; what its policies say of short windows is not of interest here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*set_vital")  # torchdata 0.11
        for text in (".*did not fill a window", ".*do not fill a window", ".*bottleneck", ".*lr_scheduler.step"):
            warnings.filterwarnings("ignore", message=text)
        yield SameRun(functools.partial(make_run, case), directory, samples=numbers_of, **options)


def is_promised(case: Case, stop: Stop) -> bool:
    """torchdata 0.11 with workers draws other seeds where the state of the end of an epoch is loaded."""
    return not (case.data == "stateful-loader" and case.workers and stop.hook == "on_train_epoch_end")


def stops_of(check: SameRun) -> Iterator[Stop]:
    """Every step; the hooks that are called after it."""
    events = check.whole[0].events
    validated = {event.step for event in events if event.kind == "validation"}
    ended = {event.step for event in events if event.kind == "row" and "loss_epoch" in event.values}
    for step in check.all_stops():
        for hook in HOOKS:
            if (hook != "on_validation_end" or step in validated) and (hook != "on_train_epoch_end" or step in ended):
                yield Stop(step, hook)
        yield Stop(step, "on_step_end", is_first=True, lost_steps=2)
