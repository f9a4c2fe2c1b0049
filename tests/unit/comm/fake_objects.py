"""One rank's side of what ranks tell each other when they set up: the others' answers are given."""

from __future__ import annotations

from typing import Any


class FakeObjects:
    """Broadcasts come from a table by source; what is gathered is this rank's own, from each rank."""

    def __init__(self, rank: int, world_size: int, sent: dict[int, Any]) -> None:
        self.rank, self.world_size, self.sent = rank, world_size, sent

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What rank `src` sends."""
        return obj if src == self.rank else self.sent[src]

    def gather_objects(self, obj: Any) -> list[Any]:
        """The same from all."""
        return [obj] * self.world_size
