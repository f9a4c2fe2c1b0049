"""What is seen of ranks over time."""

from __future__ import annotations

from typing import Any

from drivetrain.launch.patience import Patience
from drivetrain.launch.processes import Usage
from drivetrain.launch.rank_watch import RankWatch, Sight

PATIENCE = Patience(heartbeat_s=4.0, stall_s=10.0, busy_s=100.0)


class Scene:
    """Two ranks; rank 0 waits for rank 1."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.begun = [2, 1]
        self.pulse = 0
        self.patience = PATIENCE
        self.is_stopped = False
        self.usage: Usage | None = Usage(0.0, 0, False)
        self.watch = RankWatch(PATIENCE, self.see, clock=lambda: self.now_s)

    def see(self, rank: int) -> Sight:
        report: dict[str, Any] = {"counts": {"group": self.begun[rank]}, "pulse": 0, "is_held": False}
        report["patience"] = list(vars(self.patience).values())
        if rank == 1:
            report["pulse"] = self.pulse
        return Sight(report, self.is_stopped and rank == 1, lambda: self.usage)

    def wait(self, seconds: float, *, processor: float = 0.0) -> list[int]:
        """Look twice a second, until somebody has stalled."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.5
            if self.usage is not None:
                self.usage = self.usage._replace(processor_s=self.usage.processor_s + processor * 0.5)
            if stalls := self.watch.look([0, 1]):
                return [stall.rank for stall in stalls]
        return []


def test_an_idle_rank_has_stalled_after_a_while() -> None:
    """A deadlock would last until the group's timeout."""
    scene = Scene()
    assert scene.wait(9.0) == []
    assert scene.wait(4.0) == [1]


def test_processor_time_counts_as_work_for_longer() -> None:
    """To compile a model would end the run."""
    scene = Scene()
    assert scene.wait(90.0, processor=0.5) == []
    assert scene.wait(15.0, processor=0.5) == [1]


def test_work_that_ends_in_a_deadlock_is_found() -> None:
    """What a rank did before would excuse it for long."""
    scene = Scene()
    assert scene.wait(50.0, processor=0.5) == []
    assert scene.wait(14.0) == [1]


def test_progress_starts_the_clock_again() -> None:
    """A slow checkpoint would end the run."""
    scene = Scene()
    for _ in range(5):
        assert scene.wait(8.0) == []
        scene.pulse += 1


def test_where_usage_is_unknown_a_rank_may_be_computing() -> None:
    """On a system without /proc every slow rank would end the run."""
    scene = Scene()
    scene.usage = None
    assert scene.wait(90.0) == []


def test_a_stopped_watcher_does_not_blame_others() -> None:
    """A launcher that comes back from a pause would end a healthy run."""
    scene = Scene()
    assert scene.wait(1.0) == []
    scene.now_s += 1000.0
    assert scene.wait(1.0) == []


def test_a_stopped_rank_that_goes_on_is_forgiven() -> None:
    """Short pauses would add up."""
    scene = Scene()
    scene.begun = [1, 1]
    for _ in range(5):
        scene.is_stopped = True
        assert scene.wait(2.0) == []
        scene.is_stopped = False
        assert scene.wait(1.0) == []
    scene.is_stopped = True
    assert scene.wait(4.0) == [1]


def test_the_patience_of_the_ranks_counts() -> None:
    """A run that was started by `drivetrain run` would be ended by a patience that nobody asked for."""
    scene = Scene()
    scene.patience = Patience(stall_s=1e9, busy_s=1e9)
    assert scene.wait(50.0) == []
