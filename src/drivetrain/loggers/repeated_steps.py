"""Steps that a resumed run makes again, for services from which nothing can be taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RepeatedSteps:
    """Knows what was written before a run went on, and leaves it out when it comes again.

    A crash comes later than the last checkpoint: the steps in between run twice. A resumed run computes the same
    values, so the first ones may stay.

    Attributes:
        last_steps: Name to the last step that was written under it.
    """

    def __init__(self) -> None:
        self.last_steps: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._all_until = -1

    def begin(self, last_steps: Mapping[str, int], *, all_until: int = -1) -> None:
        """A run goes on.

        Args:
            last_steps: Of what was written until now, by name.
            all_until: Up to this step all names were written, where no more is known.
        """
        self._before, self._all_until = dict(last_steps), all_until
        self.last_steps = dict(last_steps)

    def end(self) -> None:
        """What comes from here on is no repetition."""
        self._before, self._all_until = {}, -1

    def fresh(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Those of the values of a step that were not written before; they are written now."""
        left = {
            name: value
            for name, value in values.items()
            if step > self._all_until and step > self._before.get(name, -1)
        }
        self.last_steps.update(dict.fromkeys(left, step))
        return left
