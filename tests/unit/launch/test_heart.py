"""What a rank says of itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from drivetrain.base.pulse import PULSE, note_progress
from drivetrain.launch.heart import Heart, file_teller, read_report
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.stall import JOINING


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    """The launcher would know nothing of its ranks."""
    path = tmp_path / "heart.json"
    assert read_report(path) is None
    tell = file_teller(path)
    assert read_report(path) is None
    for report in ({"pulse": 10**12}, {"pulse": 1}):
        tell(report)
        assert read_report(path) == report


def test_progress_shows_in_the_next_report() -> None:
    """A rank that works would count as stalled."""
    heart = Heart(lambda report: None)
    before = heart.report()
    note_progress()
    assert heart.report()["pulse"] == before["pulse"] + 1 == PULSE.count
    assert before["is_held"] is False and before["counts"][JOINING] == 0


def test_a_heart_beats_until_it_is_stopped() -> None:
    """Ranks would fall silent, or report to a store that is gone."""
    enough = threading.Event()
    told: list[dict[str, Any]] = []

    def tell(report: dict[str, Any]) -> None:
        told.append(report)
        if len(told) == 3:
            enough.set()
        if len(told) == 2:
            raise OSError("a report that is lost")

    heart = Heart(tell, beat_s=0.001)
    heart.join(DEFAULT_PATIENCE)
    heart.join(Patience(stall_s=1.0))
    assert enough.wait(20)
    heart.stop()
    number = len(told)
    assert (told[-1]["counts"][JOINING], told[-1]["patience"]) == (2, [5.0, 1.0, 600.0])
    assert len(told) == number
