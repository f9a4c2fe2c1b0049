"""Two that save for the same run; the second is a trainer that trains while the first one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain import Callback, CheckpointError, ModelCheckpoint, Trainer
from drivetrain.checkpoint.commit import read_latest
from drivetrain.checkpoint.verify import list_checkpoints
from tests.unit.trainer.runs import QUIET, Classifier, loader


class Meanwhile(Callback):
    """Does something once, before the step after some."""

    def __init__(self, step: int, act: Callable[[], Any]) -> None:
        self.step, self.act = step, act

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.step = -1
            self.act()


def run(folder: Path | str, steps: int, *callbacks: Callback, name: str = "{step}", **options: Any) -> None:
    """Train, with a checkpoint after each step."""
    keeper = ModelCheckpoint(folder, name, every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(**{**QUIET, "enable_checkpointing": None}, callbacks=[*callbacks, keeper], max_steps=steps)
    trainer.fit(Classifier(), loader(24, shuffle=True), **options)


@pytest.mark.parametrize("is_url", [False, True])
def test_a_run_that_another_has_gone_on_with_saves_no_more(tmp_path: Path, *, is_url: bool) -> None:
    """A machine that was cut off would save beside the one that took its place, and move `latest` back."""
    folder = f"memory://{tmp_path.name}" if is_url else tmp_path
    other = Meanwhile(2, lambda: run(folder, 4, resume="auto"))
    with pytest.raises(CheckpointError, match=r"\[checkpoint-superseded\]"):
        run(folder, 6, other)
    if not is_url:
        assert [path.name for path in list_checkpoints(tmp_path)] == [f"step={step}.ckpt" for step in (1, 2, 3, 4)]
        assert read_latest(tmp_path) == tmp_path / "step=4.ckpt"
    run(folder, 6, resume="auto")


def test_runs_from_one_checkpoint_in_folders_of_their_own_are_left_alone(tmp_path: Path) -> None:
    """One base that two experiments go on from would end the first of them, or the base itself."""
    base = tmp_path / "base"

    def second() -> None:
        run(tmp_path / "two", 4, ckpt_path=base / "step=1.ckpt")

    def first() -> None:
        run(tmp_path / "one", 4, Meanwhile(2, second), ckpt_path=base / "step=1.ckpt")

    run(base, 4, Meanwhile(2, first))
    assert all(len(list_checkpoints(tmp_path / name)) >= 3 for name in ("base", "one", "two"))


def test_runs_from_the_start_share_a_folder(tmp_path: Path) -> None:
    """Trials of a search that save under names of their own would end each other."""
    run(tmp_path, 3, Meanwhile(2, lambda: run(tmp_path, 3, name="b-{step}")), name="a-{step}")
    assert len(list_checkpoints(tmp_path)) == 6


def test_a_run_is_gone_on_with_by_hand_again_and_again(tmp_path: Path) -> None:
    """Who takes a checkpoint of an earlier step would be refused, since others went on before."""
    run(tmp_path, 3)
    for _ in range(2):
        run(tmp_path, 3, ckpt_path=tmp_path / "step=1.ckpt")
        run(tmp_path, 4, resume="auto")
