"""Profilers by their names, and what they write."""

from __future__ import annotations

import json
import pstats
from pathlib import Path
from typing import Any

import pytest

from drivetrain import ConfigError, CSVLogger
from drivetrain.profilers import AdvancedProfiler, PassThroughProfiler, PyTorchProfiler, SimpleProfiler
from tests.unit.trainer.runs import fit, loader


def test_actions_are_added_up_with_what_is_in_them() -> None:
    """Times of other actions, or calls that are not counted."""
    times = iter([0.0, 1.0, 2.0, 4.0, 7.0, 10.0, 11.0, 20.0])
    profiler = SimpleProfiler(clock=lambda: next(times))
    profiler.begin(".", rank=0, num_ranks=1)
    with profiler.profile("outer"):
        with profiler.profile("inner"):
            pass
    with profiler.profile("inner"):
        pass
    profiler.end()
    assert profiler.seconds == {"inner": 3.0, "outer": 6.0} and profiler.num_calls == {"inner": 2, "outer": 1}
    lines = profiler.summary().splitlines()
    assert lines[0] == "Profile of 20.000 s" and lines[2].split() == ["outer", "6.000", "6.000000", "1", "30.0"]


def test_the_simple_profile_is_printed_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """`profiler="simple"` that shows nothing."""
    _, trainer = fit(profiler="simple")
    told = capsys.readouterr().out
    assert isinstance(trainer.profiler, SimpleProfiler) and "forward" in told and "optimizer" in told
    assert trainer.profiler.num_calls["forward"] == 6


def test_a_profile_is_written_to_a_file_of_the_run(tmp_path: Path) -> None:
    """A file name that is ignored."""
    logger = CSVLogger(tmp_path)
    fit(profiler=SimpleProfiler(filename="speed"), logger=logger)
    assert "backward" in (Path(logger.log_dir or "") / "speed.txt").read_text()


def test_the_advanced_profile_names_functions_of_each_action(tmp_path: Path) -> None:
    """Functions of one action that are shown under another."""
    profiler = AdvancedProfiler(tmp_path, "calls", line_count_restriction=1.0, dump_stats=True)
    fit(profiler=profiler)
    parts = {part.splitlines()[0]: part for part in profiler.summary().split("Profile of ")[1:]}
    assert "training_step" in parts["forward"] and "training_step" not in parts["loop"]
    assert (tmp_path / "calls.txt").read_text() == profiler.summary() + "\n"
    stats: Any = pstats.Stats(str(tmp_path / "calls-forward.prof"))
    assert any(name == "training_step" for _, _, name in stats.stats)


def test_the_trace_has_operators_and_actions(tmp_path: Path) -> None:
    """A trace that cannot be opened, or in which nobody finds the step."""
    profiler = PyTorchProfiler(tmp_path, "trace")
    fit(profiler=profiler, data=loader(40))
    events = json.loads((tmp_path / "trace.pt.trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"[drivetrain] forward", "[drivetrain] optimizer", "aten::addmm"} <= names
    spans = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert spans.count("[drivetrain] forward") == 3
    assert "aten::addmm" in (tmp_path / "trace.txt").read_text()


def test_a_run_that_is_shorter_than_the_schedule_ends_well(tmp_path: Path) -> None:
    """A short try of the profiler that fails at its end."""
    fit(profiler=PyTorchProfiler(tmp_path), max_steps=1)


def test_without_a_profiler_an_action_of_ones_own_costs_nothing() -> None:
    """A script that only runs with a profiler."""
    _, trainer = fit()
    assert isinstance(trainer.profiler, PassThroughProfiler)
    with trainer.profiler.profile("own"):
        pass


def test_an_unknown_profiler_is_refused() -> None:
    """A misspelt name that profiles nothing."""
    with pytest.raises(ConfigError) as raised:
        fit(profiler="simpel")
    assert raised.value.code == "profiler"
