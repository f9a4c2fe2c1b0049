"""R-12: the launcher is killed, or told to end."""

from __future__ import annotations

from tests.faults.launcher_death import trial
from tests.faults.rows import Row

ROW = Row("R-12", "the launcher dies by KILL, TERM, INT or HUP", trial, trials=40, smoke=8)
