"""Which checkpoints stay: the best by a score, or the newest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from drivetrain.base.errors import ConfigError

Mode = Literal["min", "max"]


@dataclass
class Ranking:
    """The checkpoints that are kept, in the order in which they were made.

    Attributes:
        limit: How many; -1 for all.
        mode: `"min"`, `"max"`, or `"newest"` for checkpoints without a score.
        scores: Path to score; of `"newest"` the score is a serial number.
    """

    limit: int
    mode: Literal["min", "max", "newest"]
    scores: dict[str, Tensor] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The path of the best one, the oldest of equals; empty if there is none."""
        return min(self.scores, key=self._badness, default="")

    @property
    def worst(self) -> str:
        """The path of the first that would have to go, the oldest of equals; empty if there is none."""
        return max(self.scores, key=self._badness, default="")

    @property
    def next_number(self) -> Tensor:
        """The score of the next one, of `"newest"`."""
        return torch.tensor(1 + max((int(score) for score in self.scores.values()), default=0))

    def leaves(self, score: Tensor) -> str | None:
        """What has to go for a new one: a path, empty for nothing, `None` if the new one is not good enough."""
        if self.limit == 0:
            return None
        if self.limit == -1 or len(self.scores) < self.limit:
            return ""
        return self.worst if self._order(score) < self._badness(self.worst) else None

    def add(self, path: str, score: Tensor) -> list[str]:
        """Keep a new one; the paths that have to go."""
        self.scores.pop(path, None)
        self.scores[path] = score
        gone = []
        while len(self.scores) > self.limit != -1:
            gone.append(self.worst)
            del self.scores[self.worst]
        return gone

    def _badness(self, path: str) -> float:
        return self._order(self.scores[path])

    def _order(self, score: Tensor) -> float:
        return float(score) if self.mode == "min" else -float(score)


def score_of(value: Any, mode: Mode) -> Tensor:
    """A copy of a monitored value on the CPU; `nan` counts as the worst there is."""
    score = torch.as_tensor(value).detach().cpu().clone()
    if math.isnan(float(score)):
        score = torch.full_like(score, math.inf if mode == "min" else -math.inf)
    return score


def check_top_k(save_top_k: int) -> None:
    """Refuse what is not a number of checkpoints.

    Raises:
        ConfigError: It is not.
    """
    if save_top_k < -1:
        raise ConfigError(
            f"save_top_k={save_top_k} is not a number of checkpoints.",
            code="checkpoint-top-k",
            do="Use -1 for all, 0 for none, or how many to keep.",
        )
