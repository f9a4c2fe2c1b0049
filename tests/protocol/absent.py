"""What is not there, and what to use instead: the one place in which a missing name has its reason."""

from __future__ import annotations

ABSENT: dict[tuple[str, str], str] = {}  # (heading of the table, name) -> instead
