"""R-09: one rank is stopped, or waits or loops for ever: it is named, and the run ends."""

from __future__ import annotations

from tests.faults.rows import Row
from tests.faults.stalls import trial

ROW = Row("R-09", "a rank stops, hangs or loops for ever", trial, trials=30, smoke=0)
