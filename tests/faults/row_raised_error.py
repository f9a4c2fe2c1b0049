"""R-11: an exception on one rank, in each place where user code runs."""

from __future__ import annotations

from tests.faults.failures import trial
from tests.faults.rows import Row

ROW = Row("R-11", "an exception on one rank, in eight places", trial, trials=40, smoke=8)
