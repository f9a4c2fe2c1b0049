"""Steps that a resumed run makes again, for services from which nothing can be taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RepeatedSteps:
    """Knows what was written before a run went on, and leaves it out when it comes again.

    A crash comes later than the last checkpoint: the steps in between run twice. A resumed run computes the same
    values, so the first ones may stay.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._all_until = -1

    def begin(self, last_steps: Mapping[str, int]) -> None:
        """A run goes on.

        Args:
            last_steps: Name to the last step that was written under it.
        """
        self._last, self._all_until = dict(last_steps), -1

    def cap(self, last_step: int) -> None:
        """The service has nothing after a step. Where no more is known, it has all up to it."""
        self._all_until = -1 if self._last else last_step
        self._last = {name: min(step, last_step) for name, step in self._last.items()}

    def end(self) -> None:
        """What comes from here on is no repetition."""
        self._last, self._all_until = {}, -1

    def fresh(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Those of the values of a step that were not written before."""
        if step <= self._all_until:
            return {}
        return {name: value for name, value in values.items() if step > self._last.get(name, -1)}
