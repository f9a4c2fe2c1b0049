"""The checkpoints of a run that are on the disk, and those that have to go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.callbacks.checkpoint_ranking import Ranking


@dataclass(frozen=True)
class SavePlan:
    """What rank 0 decided, for all ranks.

    Attributes:
        path: Where to save.
        score: What it is ranked by; `None` if it cannot be.
        is_ranked: It is kept among the best; otherwise only until the next one is saved.
    """

    path: str
    score: Tensor | None
    is_ranked: bool


class KeptCheckpoints:
    """Which checkpoints are kept; equal on all ranks.

    Attributes:
        ranking: Those kept by score.
        unranked: One that is kept until the next one is saved; empty if there is none.
        doomed: To be deleted. In the state, so that a run that was killed before it did goes on with it.
        saved_step: Optimizer steps of the newest one; -1 without one.
    """

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.unranked = ""
        self.doomed: list[str] = []
        self.saved_step = -1

    def note(self, plan: SavePlan, step: int) -> None:
        """Take a new one in; what has to go for it is doomed."""
        doomed = [*self.doomed, self.unranked]
        if plan.is_ranked and plan.score is not None:
            doomed += self.ranking.add(plan.path, plan.score)
            self.unranked = ""
        else:
            self.ranking.scores.pop(plan.path, None)
            self.unranked = plan.path
        self.doomed = [path for path in doomed if path not in ("", plan.path) and path not in self.ranking.scores]
        self.saved_step = step

    def keep_below(self, directory: str) -> None:
        """Forget those outside of a directory: they are not ours to delete."""
        self.ranking.scores = {path: score for path, score in self.ranking.scores.items() if _is_in(path, directory)}
        self.doomed = [path for path in self.doomed if _is_in(path, directory)]
        self.unranked = self.unranked if _is_in(self.unranked, directory) else ""

    def state_dict(self) -> dict[str, Any]:
        """Plain data and scores."""
        return {
            "scores": dict(self.ranking.scores),
            "unranked": self.unranked,
            "doomed": list(self.doomed),
            "saved_step": self.saved_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.ranking.scores = dict(state["scores"])
        self.unranked = state["unranked"]
        self.doomed = list(state["doomed"])
        self.saved_step = state["saved_step"]


def _is_in(path: str, directory: str) -> bool:
    return Path(path).is_relative_to(directory)
