"""What a function asks of the disk, seen from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def syncs_and_renames(function: Callable[[], object]) -> list[str]:
    """The calls of a function that bring something to the disk or give it a name, in order."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument in (os.fsync, os.rename, os.replace):
            calls.append(argument.__name__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls
