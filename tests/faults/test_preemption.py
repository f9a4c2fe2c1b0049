"""Runs that are told to end, in one rank or all, once or often: they save, leave together, and go on exactly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drivetrain import Fabric, ModelCheckpoint, PreemptedExit
from drivetrain.loop.agreed_end import AgreedEnd
from tests.faults import preempted_training
from tests.ranks.launched_programs import all_gone, descendants, finish, start, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.faults.preempted_training import main
main()
"""
RAW = """
import sys
import torch
import drivetrain

def main(fabric):
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randn(100_000, 4), batch_size=4))
    for number, window in enumerate(fabric.windows(data, model, optimizer)):
        for batch in window:
            window.backward(model(batch).square().mean())
        if fabric.should_stop(window):
            assert fabric.should_stop()
            fabric.save("saved", {"model": model, "step": number})
            return fabric.all_gather(torch.tensor(number)).tolist()
        if number == 2:
            open(f"at_{fabric.global_rank}", "w").close()

fabric = drivetrain.Fabric(accelerator="cpu", devices=2)
first, second = fabric.launch(main)
print(first == second > 2)
sys.exit(drivetrain.PREEMPTED_EXIT_CODE)
"""


def run_told(root: Path, told: Any, devices: int) -> Any:
    """In a rank: told to end, then resumed; what is left, step and checkpoint of the first part, files."""
    try:
        preempted_training.train(root, devices=devices, told=told)
        return None
    except PreemptedExit as exit_:
        path = exit_.checkpoint
    _, found = preempted_training.train(root, path, devices=devices)
    return found, Path(path).name, sorted(one.name for one in root.glob("*.ckpt"))


def run_whole(root: Path, devices: int) -> Any:
    """In a rank: never told."""
    return preempted_training.train(root, devices=devices)[1]


def run_resumed(root: Path, ckpt_path: Path) -> Any:
    """In one of 2 ranks: goes on from a checkpoint."""
    return preempted_training.train(root, ckpt_path, devices=2)[1]


@pytest.fixture(scope="module")
def whole(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What 2 ranks make of it that are never told, by number of ranks."""
    root = tmp_path_factory.mktemp("whole")
    return {world: ranks.run(run_whole, root, world, world=world)[0] for world in (1, 2)}


def start_program(root: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program on 2 ranks, in its third step; and the process ids of its ranks."""
    (root / "train.py").write_text(PROGRAM)
    process = start("train.py", str(root), *arguments, cwd=root)
    try:
        wait_for(root / "at_*")
    except BaseException:
        process.kill()
        finish(process)
        raise
    time.sleep(0.05)
    return process, [int((root / f"at_{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("world", "told"),
    [
        (1, {0: (5, 0.0)}),
        (2, {1: (5, 0.0)}),
        (2, {0: (5, 0.0), 1: (7, 0.0)}),
        (2, {0: (15, 0.0)}),
        (2, {0: (2, 0.0), 1: (2, 0.5)}),
    ],
)
def test_ranks_leave_together_and_the_run_that_goes_on_is_exact(
    ranks: Any, whole: Any, world: int, told: Any, tmp_path: Path
) -> None:
    """A rank would wait for one that has left, or the run that goes on be another one than that which was not told."""
    results = ranks.run(run_told, tmp_path, told, world, world=world)
    assert all(result == results[0] for result in results)
    found, name, files = results[0]
    assert found == whole[world]
    assert files == [name] and name.startswith("preempted-step=")


def run_told_beside_saves(root: Path) -> Any:
    """In one of 2 ranks: rank 1 is told to end while checkpoints are written beside training; then resumed."""

    def keeper() -> Any:
        return ModelCheckpoint(root, "{step}", every_n_train_steps=2, save_top_k=-1, save_async=True)

    try:
        preempted_training.train(root, devices=2, told={1: (9, 0.0)}, callbacks=[keeper()])
    except PreemptedExit as exit_:
        path = Path(exit_.checkpoint)
        files = sorted(one.name for one in root.glob("*.ckpt"))
        return preempted_training.train(root, "last", devices=2, callbacks=[keeper()])[1], path.name, files
    return None


def test_ranks_that_save_beside_training_leave_together(ranks: Any, whole: Any, tmp_path: Path) -> None:
    """The last save would meet one that is being written; or a rank go on from another checkpoint than the others."""
    first, second = ranks.run(run_told_beside_saves, tmp_path)
    assert first == second and first[0] == whole[2]
    step = int(first[1].removesuffix(".ckpt").rpartition("=")[2])
    assert first[2] == sorted({first[1], *(f"step={even}.ckpt" for even in range(2, step + 1, 2))})


def leave(num_batches: list[int], told: tuple[int, int]) -> Any:
    """In a rank: an evaluation of its number of batches; after which it was left, and how many messages that took."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    rank, messages, now = fabric.global_rank, [0], [0.0]
    collectives = fabric.collectives
    send = collectives.agree

    def agree(values: Any, op: Any = "sum") -> Any:
        messages[0] += 1
        return send(values, op)

    collectives.agree = agree  # type: ignore[method-assign]
    number = -1
    end = AgreedEnd(collectives, lambda: rank == told[0] and number >= told[1], clock=lambda: now[0])
    for number in range(num_batches[rank]):
        now[0] += 0.01 * (1 + rank)
        if end.leaves_after(number):
            break
    else:
        end.wait_for_others()
    fabric.close()
    return end.is_agreed, number, messages[0]


@pytest.mark.parametrize("num_batches", [[0, 0], [1, 0], [3, 7], [400, 400], [1000, 10]])
def test_an_evaluation_is_left_after_the_same_batch(ranks: Any, num_batches: list[int]) -> None:
    """Ranks that are told apart would wait for each other for ever, or send a message for each batch."""
    for told in ((0, 10_000), (0, 100), (1, 2)):
        first, second = ranks.run(leave, num_batches, told, world=2)
        assert first[0] == second[0] == (num_batches[told[0]] > told[1])
        assert first[2] == second[2] <= 12 + max(num_batches) / 25
        if first[0]:
            assert first[1] == second[1] or min(first[1], second[1]) == min(num_batches) - 1


def test_a_launcher_that_is_told_again_and_again_saves_once(ranks: Any, whole: Any, tmp_path: Path) -> None:
    """The launcher would kill ranks that are saving, or its exit code look like a failure."""
    process, _ = start_program(tmp_path)
    pids = descendants(process)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    code, out, err = finish(process, timeout_s=20)
    (saved,) = tmp_path.glob("*.ckpt")
    assert (code, err, all_gone(pids, within_s=1)) == (75, "", [])
    assert f"SIGTERM on rank 0, 1; saved {saved}" in out and (tmp_path / "latest").read_text().strip() == saved.name
    assert ranks.run(run_resumed, tmp_path, saved, world=2) == [whole[2]] * 2


def test_ranks_that_are_told_apart_leave_together(tmp_path: Path) -> None:
    """A scheduler that tells the ranks one by one, or one alone, would hang the run or cut its checkpoint."""
    process, (first, second) = start_program(tmp_path)
    os.kill(second, signal.SIGUSR1)
    time.sleep(0.4)
    for _ in range(2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGTERM)
    code, out, err = finish(process, timeout_s=20)
    assert (code, err) == (75, "")
    assert len(list(tmp_path.glob("*.ckpt"))) == 1 and "SIGUSR1" in out


def test_a_second_interrupt_ends_a_run_whose_step_does_not_end(tmp_path: Path) -> None:
    """Ctrl-C would have no effect until the step is over, and `kill -9` be the only way out."""
    process, _ = start_program(tmp_path, "--hold") if sys.platform == "linux" else pytest.skip("needs /proc")
    pids = descendants(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.8)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process, timeout_s=10)
    assert (code, all_gone(pids, within_s=1)) == (-signal.SIGINT, [])
    assert list(tmp_path.glob("*.ckpt")) == []


def test_a_loop_of_ones_own_hears_it_and_ends(tmp_path: Path) -> None:
    """Only a Trainer could be preempted."""
    (tmp_path / "train.py").write_text(RAW)
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "at_*")
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process, timeout_s=20)
    assert (code, out.strip(), err) == (75, "True", "")
    assert (tmp_path / "saved").is_dir()
