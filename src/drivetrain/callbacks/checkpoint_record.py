"""What a `ModelCheckpoint` has saved, and which of that is the best: its state."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from drivetrain.callbacks.checkpoint_ranking import Mode, Ranking
from drivetrain.callbacks.kept_checkpoints import KeptCheckpoints, SavePlan
from drivetrain.callbacks.monitor import MonitorPlace
from drivetrain.loop.callback import Callback


class CheckpointRecord(Callback):
    """The part of a `ModelCheckpoint` that is in its checkpoints."""

    def __init__(self, dirpath: str | None, monitor: str | None, mode: Mode, save_top_k: int, place: MonitorPlace):
        self._given_dirpath = dirpath
        self.dirpath = dirpath
        self.monitor = monitor
        self.mode: Mode = mode
        self.save_top_k = save_top_k
        self.best_model_path = ""
        self.best_model_score: Tensor | None = None
        self.last_model_path = ""
        self.kth_best_model_path = ""
        self.current_score: Tensor | None = None
        self._kept = KeptCheckpoints(Ranking(save_top_k, mode if monitor is not None else "newest"))
        self._place = place

    @property
    def has_own_dirpath(self) -> bool:
        """`dirpath` was given."""
        return self._given_dirpath is not None

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """Path to score of the checkpoints kept by score; empty without `monitor`."""
        return self._kept.ranking.scores if self.monitor is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Paths and scores. All ranks."""
        return {
            "dirpath": self.dirpath,
            "best_model_path": self.best_model_path,
            "best_model_score": self.best_model_score,
            "last_model_path": self.last_model_path,
            "kth_best_model_path": self.kth_best_model_path,
            "current_score": self.current_score,
            "kept": self._kept.state_dict(),
            "is_of_epoch": self._place.is_of_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore paths and scores; what lies outside of `dirpath` is not ours to delete. All ranks."""
        if self.dirpath is None:
            self.dirpath = state_dict["dirpath"]
        self.best_model_path = state_dict["best_model_path"]
        self.best_model_score = state_dict["best_model_score"]
        self.last_model_path = state_dict["last_model_path"]
        self.kth_best_model_path = state_dict["kth_best_model_path"]
        self.current_score = state_dict["current_score"]
        self._kept.load_state_dict(state_dict["kept"])
        self._place.is_of_epoch = state_dict["is_of_epoch"]

    def _note(self, plan: SavePlan, step: int) -> None:
        self._kept.note(plan, step)
        ranking = self._kept.ranking
        self.last_model_path = plan.path
        if ranking.scores:
            self.best_model_path = ranking.best
            self.kth_best_model_path = ranking.worst
        if self.monitor is not None:
            self.current_score = plan.score
            self.best_model_score = ranking.scores.get(self.best_model_path, self.best_model_score)
