"""A run that is stopped anywhere and goes on is the run that was not stopped. All of it: `python -m tests.resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.testing.same_run import Stop
from tests.resume.grid import AROUND, HAS_STATEFUL_LOADER, WINDOWS, check_of, is_promised, stops_of
from tests.resume.training import Case

DATA = [
    Case(), Case(data="own-sampler"), Case(data="stateful"), Case(data="stream"), Case(data="batches"),
]  # fmt: skip
WORKERS = [
    Case(workers=1), Case(workers=2, is_persistent=True), Case(data="own-sampler", workers=2),
    Case(data="stream", workers=2), Case(data="stream", workers=2, is_persistent=True),
]  # fmt: skip


SMOKE = [*DATA, *WINDOWS, *AROUND]


@pytest.mark.parametrize("number", range(len(SMOKE)), ids=lambda number: str(SMOKE[number]))
def test_a_run_that_goes_on_is_the_one_that_was_not_stopped(number: int, tmp_path: Path) -> None:
    """Samples, random numbers, a schedule, a logged mean or a validation would depend on where a run was killed."""
    with check_of(SMOKE[number], tmp_path) as check:
        chosen = list(stops_of(check))[number % 11 :: 11]  # of all cases together: every step, in every hook
        found = {str(stop): text for stop in chosen if (text := check.difference(stop)) is not None}
    assert chosen and not found


@pytest.mark.parametrize("case", WORKERS, ids=str)
def test_workers_go_on_where_they_were(case: Case, tmp_path: Path) -> None:
    """What workers have fetched ahead would be lost, or their augmentation be another."""
    with check_of(case, tmp_path) as check:
        steps = check.all_stops()
        assert [check.difference(Stop(step)) for step in (2, len(steps) // 2 + 1)] == [None, None]


@pytest.mark.skipif(not HAS_STATEFUL_LOADER, reason="torchdata is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_by_its_own_state(workers: int, tmp_path: Path) -> None:
    """What knows its position would be read again from its beginning; or its next epoch be empty after a full one."""
    case = Case(data="stateful-loader", workers=workers)
    with check_of(case, tmp_path) as check:
        stops = list(stops_of(check))[:: 17 if workers else 5]
        found = [check.difference(stop) for stop in stops if is_promised(case, stop)]
    assert not any(found)


@pytest.mark.parametrize("case", [Case(), Case(data="stateful"), Case(data="stream")], ids=str)
def test_a_run_may_go_on_twice_in_one_epoch(case: Case, tmp_path: Path) -> None:
    """The second resume would count from the first one, or forget what the first has restored."""
    with check_of(case, tmp_path) as check:
        assert check.difference(Stop(1), Stop(3)) is None
        assert check.difference(Stop(2), Stop(3, lost_steps=1), Stop(5)) is None


def test_workers_of_a_validation_that_no_run_has_come_to_are_known(tmp_path: Path) -> None:
    """They stay from the check before training on; a run that ends before it has begun them would draw again."""
    with check_of(Case(around="val"), tmp_path) as check:
        assert check.difference(Stop(1), Stop(2, "on_train_batch_end")) is None


def test_the_row_of_a_window_over_two_epochs_has_both_of_its_parts(tmp_path: Path) -> None:
    """The first part is neither in the epoch that ended nor in the gradients that are carried."""
    with check_of(Case(accumulate=3, remainder="carry"), tmp_path) as check:
        assert check.difference(Stop(2, "on_train_epoch_end")) is None
        assert check.difference(Stop(3, "on_train_batch_end")) is None


@pytest.mark.parametrize(
    "case", [Case(around="ema"), Case(workers=1), Case(data="own-sampler"), Case(data="stateful")], ids=str
)
def test_ranks_go_on_together(case: Case, ranks: Any, tmp_path: Path) -> None:
    """Each rank has a random state, a share of the data and logged values of its own."""
    with check_of(case, tmp_path, num_ranks=2, ranks=ranks) as check:
        assert [check.difference(Stop(step)) for step in (1, 3)] == [None, None]
        assert check.difference(Stop(2, "on_train_batch_end")) is None


def test_one_rank_may_go_on_for_two(ranks: Any, tmp_path: Path) -> None:
    """A run that has lost a machine would read samples twice, or leave some out."""
    case = Case(around="ranks", options=(("global_batch_size", 6), ("accumulate_grad_batches", 1)))
    with check_of(case, tmp_path, num_ranks=2, ranks=ranks) as check:
        assert [check.difference(Stop(step), resumed_on=1) for step in (1, 3)] == [None, None]
