"""Which rank has stalled, from what each has begun."""

from __future__ import annotations

import math

import pytest

from drivetrain.base.errors import ConfigError
from drivetrain.launch.patience import Patience
from drivetrain.launch.stall import JOINING, RankView, find_stalls

PATIENCE = Patience(heartbeat_s=4.0, stall_s=10.0, busy_s=100.0)


def view(rank: int, begun: int, *, moved_s: float = 0.0, **more: float | bool | None) -> RankView:
    made = RankView(rank, {"group": begun, JOINING: 1}, moved_s=moved_s, heard_s=1000.0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def stalled(*views: RankView, now_s: float, patience: Patience = PATIENCE) -> list[int]:
    return [stall.rank for stall in find_stalls(views, patience, now_s)]


def test_the_rank_that_has_not_come_to_the_collective_has_stalled() -> None:
    """The rank that waits would be named, and its stack would be read for nothing."""
    views = view(0, 12), view(1, 11), view(2, 12)
    assert stalled(*views, now_s=9.9) == []
    (stall,) = find_stalls(views, PATIENCE, 10.0)
    assert (stall.rank, stall.waited_s) == (1, 10.0)
    assert stall.reason == (
        "it has done nothing for 10.0 s, while ranks 0, 2 wait in collective 12 of process group 'group' "
        "(rank 1 was last in 11)"
    )


def test_nobody_has_stalled_where_nobody_waits() -> None:
    """A long evaluation, or a long pause of all ranks, would end the run."""
    assert stalled(view(0, 12), view(1, 12), now_s=1e6) == []


def test_a_rank_that_makes_progress_has_time() -> None:
    """A long validation of one rank, or a slow checkpoint, would end the run."""
    assert stalled(view(0, 12), view(1, 11, moved_s=95.0), now_s=100.0) == []


def test_a_rank_that_computes_has_more_time() -> None:
    """To compile a model would end the run; an endless loop would not."""
    views = view(0, 12), view(1, 11, computed_s=99.0)
    assert stalled(*views, now_s=99.5) == []
    assert stalled(*views, now_s=100.0) == [1]


def test_whoever_has_begun_a_collective_and_works_on_does_not_wait() -> None:
    """A collective that was begun beside other work would count as a wait."""
    assert stalled(view(0, 12, moved_s=95.0), view(1, 11), now_s=100.0) == []


def test_a_rank_that_waits_for_another_is_not_blamed() -> None:
    """In a chain, ranks in the middle would be named with the cause."""
    chain = [RankView(0, {"a": 2}), RankView(1, {"a": 1, "b": 2}), RankView(2, {"b": 1})]
    for one in chain:
        one.heard_s = 1000.0
    assert stalled(*chain, now_s=10.0) == [2]


def test_ranks_in_different_collectives_wait_for_each_other() -> None:
    """A mismatch of collectives would last until the group's timeout."""
    views = [RankView(0, {"a": 2, "b": 1}, heard_s=99.0), RankView(1, {"a": 1, "b": 2}, heard_s=99.0)]
    stalls = find_stalls(views, PATIENCE, 10.0)
    assert [stall.rank for stall in stalls] == [0, 1]
    assert stalls[0].reason.startswith("ranks wait for each other in different collectives: rank 1 waits in collective")


def test_a_stopped_process_is_found_before_anybody_waits() -> None:
    """SIGSTOP would be noticed only by a timeout."""
    views = view(0, 12), view(1, 12, stopped_s=10.0)
    assert stalled(*views, now_s=12.9) == []
    assert stalled(*views, now_s=13.0) == [1]


def test_a_rank_that_never_joins_is_waited_for() -> None:
    """Ranks would wait in vain for one that hangs before the first collective."""
    views = [RankView(0, {JOINING: 1}), RankView(1)]
    assert stalled(*views, now_s=10.0) == [1]
    assert "rank 0 waits for it to join the process group" in find_stalls(views, PATIENCE, 10.0)[0].reason


def test_a_rank_from_which_nothing_is_heard_is_named_if_others_wait_for_it() -> None:
    """A machine that is cut off would be noticed only by a timeout, where busy ranks have all the time."""
    silent = view(1, 11, heard_s=0.0, computed_s=24.0)
    assert stalled(view(0, 12), silent, now_s=23.0) == []
    assert stalled(view(0, 12), silent, now_s=24.0) == [1]
    assert stalled(view(0, 11), silent, now_s=24.0) == []


def test_a_debugged_rank_is_left_alone() -> None:
    """The run would end while somebody looks at it."""
    assert stalled(view(0, 12), view(1, 11, is_held=True), now_s=1e6) == []


def test_a_clock_can_be_switched_off() -> None:
    """Who wants to wait for ever could not."""
    views = view(0, 12), view(1, 11, stopped_s=0.0)
    assert stalled(*views, now_s=1e9, patience=Patience(math.inf, math.inf, math.inf)) == []


@pytest.mark.parametrize("value", [0, -1, float("nan"), "5", True])
def test_patience_is_a_number_of_seconds(value: object) -> None:
    """A misread argument would end every run at once, or none."""
    with pytest.raises(ConfigError, match=r"\[stall-patience\]"):
        Patience(stall_s=value)  # type: ignore[arg-type]
