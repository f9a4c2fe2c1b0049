"""Counters: stored and restored as they are."""

from __future__ import annotations

from drivetrain.base.progress import Progress


def test_every_counter_comes_back() -> None:
    """A resumed run would begin its schedule, its epoch or its data anew."""
    progress = Progress(step=1, micro_step=2, epoch=3, samples=4, epoch_micro_step=5, epoch_samples=6)
    again = Progress()
    again.load_state_dict(progress.state_dict())
    assert again == progress


def test_counters_of_another_version_do_not_harm() -> None:
    """A checkpoint of an older or newer version could not be read."""
    progress = Progress(step=5)
    progress.load_state_dict({"epoch": 2, "of_another_version": 9})
    assert progress == Progress(step=5, epoch=2)
    assert not hasattr(progress, "of_another_version")
