"""A measurement in a process of its own: whatever a library prints goes nowhere, one JSON line is the answer."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def answer(measure: Callable[[], Mapping[str, Any] | None]) -> None:
    """Run a measurement with standard output closed to everybody else, then print what it returns.

    Args:
        measure: Returns plain data, or `None` where another rank answers.
    """
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # At the level of the descriptor: libraries hold on to `sys.stdout`, and native code prints too.
    with os.fdopen(os.dup(1), "w") as own_output, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        reading = measure()
        sys.stdout.flush()
        if reading is not None:
            own_output.write(json.dumps(reading) + "\n")
