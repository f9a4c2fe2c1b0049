"""One line of what `drivetrain doctor` has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "look", "broken"]


@dataclass(frozen=True)
class Finding:
    """What is, and whether it is as it should be.

    Attributes:
        area: `"versions"`, `"devices"`, `"threads"`, `"network"`, `"ranks"` or `"disk"`.
        name: What was looked at.
        value: How it is.
        state: `"look"` where runs may be slow or fail, `"broken"` where they will.
        advice: What to do about it.
    """

    area: str
    name: str
    value: str
    state: State = "ok"
    advice: str = ""
