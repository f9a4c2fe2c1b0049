"""What is not there, and what to use instead: the one place in which a missing name has its reason."""

from __future__ import annotations

# (heading of the table, name) -> instead
ABSENT: dict[tuple[str, str], str] = {
    ("What a module uses of itself", "fabric"): "a module of a `Trainer` has `self.trainer`",
}
