"""Runs that go on by themselves after a rank has failed."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain import DDP, Callback, Fabric, ModelCheckpoint, Trainer, seed_everything
from drivetrain.base.errors import ConfigError, RankFailedError
from drivetrain.launch.launch_function import launch_function
from tests.ranks.launched_programs import run
from tests.unit.trainer.runs import QUIET, Classifier, loader, weights

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys
sys.path[:0] = PATHS
from tests.ranks.test_restarts import KilledAt, train
trainers = [train(f"kept_{number}", 6, callbacks=[KilledAt(step, 0)], devices=DEVICES, start="script", max_restarts=2)
            for number, step in enumerate((0, 5))]
if trainers[0][0].is_global_zero:
    print([trainer.global_step for trainer, _ in trainers], trainers[0][0].num_restarts)
"""


class KilledAt(Callback):
    """SIGKILL of a rank after a step, in the first attempts; 0 for never."""

    def __init__(self, step: int, rank: int = 1, *, times: int = 1) -> None:
        self.step, self.rank, self.times = step, rank, times

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        is_due = trainer.strategy.cluster.restart_count < self.times and trainer.global_rank == self.rank
        if is_due and trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class RaisesAt(KilledAt):
    """An exception instead."""

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        is_due = trainer.strategy.cluster.restart_count < self.times and trainer.global_rank == self.rank
        if is_due and trainer.global_step == self.step:
            raise RuntimeError("the data are bad")


class Begins(Callback):
    """Writes from which step each attempt goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            with self.path.open("a") as file:
                file.write(f"{trainer.global_step} ")


def train(
    root: str | Path, steps: int, *, callbacks: Any = (), devices: int = 2, start: Any = "fork", every: int = 2,
    max_restarts: int = 0, **options: Any,
) -> tuple[Trainer, Any]:  # fmt: skip
    """A few steps of a Trainer; its weights."""
    seed_everything(1, verbose=False)
    keeper = ModelCheckpoint(root, "{step}", every_n_train_steps=every, save_top_k=-1)
    module = Classifier(dropout=0.1)
    trainer = Trainer(
        **{**QUIET, "enable_checkpointing": None}, strategy=DDP(start=start), devices=devices, max_steps=steps,
        default_root_dir=f"{root}_failures", callbacks=[*callbacks, keeper], max_restarts=max_restarts,
    )  # fmt: skip
    trainer.fit(module, loader(24, shuffle=True, batch_size=2), **options)
    return trainer, weights(module)


def same(left: Any, right: Any) -> bool:
    return all(torch.equal(left[name], right[name]) for name in right)


@pytest.mark.parametrize(
    ("fault", "says"), [(KilledAt, "was killed by SIGKILL"), (RaisesAt, "failed: RuntimeError: the data are bad")]
)
def test_a_run_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: Callable[..., KilledAt], says: str
) -> None:
    """Somebody would have to start it again by hand, and would get other weights."""
    _, expected = train(tmp_path / "whole", 6)
    begins = tmp_path / "begins"
    _, found = train(tmp_path / "cut", 6, callbacks=[Begins(begins), fault(5)], max_restarts=3)
    assert same(found, expected) and begins.read_text() == "0 4 "
    console = capfd.readouterr()
    kept = tmp_path / "cut" / "step=4.ckpt"
    assert f"restart 1 of 3, after rank 1 of 2 {says}: goes on from {kept} (step 4)." in console.out


def test_before_the_first_checkpoint_a_run_begins_as_it_first_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would go on from a checkpoint of another run in the same folder, or leave out the one that it was given."""
    train(tmp_path / "kept", 4)
    _, expected = train(tmp_path / "whole", 6)
    capfd.readouterr()
    begins = tmp_path / "begins"
    _, found = train(tmp_path / "kept", 6, callbacks=[Begins(begins), KilledAt(1)], max_restarts=1)
    assert same(found, expected) and begins.read_text() == "0 0 "
    assert "nothing was saved yet, begins as at the first start." in capfd.readouterr().out
    begins.unlink()
    given = tmp_path / "kept" / "step=4.ckpt"
    callbacks = [Begins(begins), KilledAt(5), KilledAt(7, times=2)]
    trainer, _ = train(tmp_path / "new", 8, callbacks=callbacks, max_restarts=2, ckpt_path=given)
    assert begins.read_text() == "4 4 6 " and trainer.global_step == 8


def test_a_damaged_checkpoint_is_passed_over_after_a_failure(tmp_path: Path) -> None:
    """A failure that damages the newest checkpoint would end the run for good."""

    class Damages(KilledAt):
        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 5 and trainer.strategy.cluster.restart_count == 0:
                (tmp_path / "cut" / "step=4.ckpt" / "rank_1.pt").write_bytes(b"torn")
                super().on_step_end(trainer, pl_module)

    _, expected = train(tmp_path / "whole", 8)
    begins = tmp_path / "begins"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*passed over.*")
        _, found = train(tmp_path / "cut", 8, callbacks=[Begins(begins), Damages(5)], max_restarts=1)
    assert same(found, expected) and begins.read_text() == "0 2 "


def test_restarts_are_counted_and_the_last_failure_is_an_error(tmp_path: Path) -> None:
    """A run that can never succeed would be started again for ever, or end without a reason."""
    begins = tmp_path / "begins"
    with pytest.raises(RankFailedError, match="killed by SIGKILL.* started again 2 times before") as caught:
        train(tmp_path / "kept", 6, callbacks=[Begins(begins), KilledAt(3, times=99)], max_restarts=2)
    assert caught.value.failed_rank == 1 and begins.read_text() == "0 2 2 "


def test_ranks_that_all_leave_by_the_same_exit_are_not_started_again(tmp_path: Path) -> None:
    """A program that has decided to end, or was told to and has saved, would be run again and use up its restarts."""
    counts = tmp_path / "counts"

    def leave() -> None:
        with counts.open("a") as file:
            file.write("x")
        sys.exit(75)

    with pytest.raises(SystemExit) as caught:
        launch_function(leave, num_ranks=2, start="fork", max_restarts=3)
    assert caught.value.code == 75 and counts.read_text() == "xx"


@pytest.mark.parametrize("devices", [1, 2])
def test_a_script_with_two_fits_is_started_again(tmp_path: Path, devices: int) -> None:
    """The first fit would be made again, or go on from what the second has saved; one device would not be watched."""
    root = Path(__file__).parents[2]
    text = SCRIPT.replace("PATHS", repr([str(root), str(root / "src")])).replace("DEVICES", str(devices))
    (tmp_path / "train.py").write_text(text)
    code, out, err = run("train.py", cwd=tmp_path)
    assert code == 0, err
    assert f"rank 0 of {devices} was killed by SIGKILL" in err and "(restart 1 of 2)" in err
    lines = [line.split(": ")[1] for line in out.splitlines() if line.startswith("restart 1 of 2")]
    assert lines == [
        f"goes on from {tmp_path / 'kept_0' / 'step=6.ckpt'} (step 6).",
        f"goes on from {tmp_path / 'kept_1' / 'step=4.ckpt'} (step 4).",
    ]
    assert out.splitlines()[-1] == "[6, 6] 1"


def test_a_function_of_ones_own_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-written loop could be launched, and not be kept alive."""
    monkeypatch.chdir(tmp_path)  # what failed is written there

    def main(fabric: Fabric) -> Any:
        model = fabric.setup(torch.nn.Linear(2, 1))
        state = {"model": model, "step": 0}
        if fabric.latest("kept") is not None:
            fabric.load("kept", state)
        first = state["step"]
        for step in range(first, 4):
            if step == 2 and fabric.num_restarts == 0 and fabric.global_rank == 1:
                os._exit(0)
            state["step"] = step + 1
            fabric.save(f"kept/{step}", state)
        return first, state["step"], fabric.num_restarts

    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDP(start="fork"))
    assert fabric.launch(main, max_restarts=1) == (2, 4, 1)


def test_a_number_of_restarts_is_a_whole_number() -> None:
    """-1 would be read as "for ever", and never start anything again."""
    with pytest.raises(ConfigError, match="max_restarts=-1") as caught:
        Trainer(**QUIET, max_restarts=-1)
    assert caught.value.code == "max-restarts"
    with pytest.raises(ConfigError, match="max_restarts=True"):
        Fabric(accelerator="cpu", devices=1).launch(print, max_restarts=True)
