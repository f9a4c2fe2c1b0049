"""How many batches a run has, within its limits."""

from __future__ import annotations

import math
from typing import Any

from drivetrain.trainer.arguments import resolve_limit


def loader_lengths(trainer: Any, name: str, *stages: str) -> list[int | float]:
    """Batches of each loader of evaluation, within the limit of that name; none while another stage runs."""
    if trainer.run is None or trainer.run.request.stage not in stages:
        return []
    return [limited(name, getattr(trainer, name), loader.num_batches) for loader in trainer.run.loaders]


def limited(name: str, limit: int | float | None, num_batches: int | None) -> int | float:
    """Batches within a limit; inf if their number is unknown and the limit is none, or a part of it."""
    if num_batches is None and isinstance(limit, float):
        return math.inf
    most = resolve_limit(name, limit, num_batches)
    size = math.inf if num_batches is None else num_batches
    return size if most is None else min(size, most)
