"""R-19: something happens on one rank alone, and all ranks have to decide alike, at the same step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from drivetrain import Callback, EarlyStopping, ModelCheckpoint
from drivetrain.callbacks.timer import Timer
from drivetrain.checkpoint.verify import list_checkpoints, problems
from drivetrain.cluster.read_cluster import current_cluster
from tests.faults.rows import Row
from tests.faults.short_run import DATA, Net, Outcome, Stream, check_equal, fit, in_ranks, windows_of

BATCH, SIZE, EPOCHS = 4, 2, 2
GLOBAL = 2 * BATCH * SIZE  # samples of a window
STEPS = 6  # of an epoch
INF = float("inf")
WINDOWS = [list(range(start, start + GLOBAL)) for start in range(0, STEPS * GLOBAL, GLOBAL)] * EPOCHS


class Case:
    """What a trial draws.

    Attributes:
        draw: For all else.
        is_second: Of the two ways in which each kind is tried, in turn.
        rank: To which it happens.
        step: Steps done when it does.
        directory: Of the trial.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.draw = random.Random(seed)
        self.is_second = seed // len(KINDS) % 2 == 1
        self.rank, self.step = self.draw.randrange(2), self.draw.randrange(1, STEPS * EPOCHS - 2)
        self.directory = directory

    @property
    def is_here(self) -> bool:
        """In a rank: it is the one."""
        return current_cluster().rank == self.rank

    def is_now(self, net: Net) -> bool:
        """In a rank: it is the one, and the time has come."""
        return self.is_here and net.global_step == self.step

    def run(self, alter: Callable[[Net, Tensor], Any] = lambda net, loss: loss, **options: Any) -> list[Outcome]:
        """Two epochs of windows of two micro-batches of each rank, or as the options say."""
        loader = DataLoader(Subset(DATA, range(STEPS * GLOBAL)), batch_size=BATCH)
        defaults = {"accumulate_grad_batches": SIZE, "max_epochs": EPOCHS, "default_root_dir": self.directory}
        return in_ranks(lambda: fit(Net(alter), loader, **(defaults | options)), self.directory)


def check_errors(outcomes: Sequence[Outcome], codes: set[str]) -> None:
    """Every rank has an error of these kinds; without codes, none has one."""
    if codes:
        assert {one.code for one in outcomes} <= codes, [one.error for one in outcomes]
    else:
        assert not any(one.code for one in outcomes), [one.error for one in outcomes]


def gradient_is_inf(case: Case) -> None:
    """All ranks skip the step, or all end with the error; a loss is inf, or only what comes back from it."""
    policy, is_loss = "error" if case.is_second else "skip", case.draw.random() < 0.5
    number = case.draw.randrange(SIZE)
    print(f"{'a loss' if is_loss else 'a gradient'} is inf, nonfinite={policy!r}")

    def alter(net: Net, loss: Tensor) -> Any:
        if not (case.is_now(net) and net.trainer.micro_step % SIZE == number):
            return loss
        if not is_loss:
            loss = 1.0 * loss
            loss.register_hook(lambda gradient: gradient * INF)
            return loss
        return loss * INF

    outcomes = case.run(alter, nonfinite=policy)
    is_end = policy == "error"
    check_errors(outcomes, {"non-finite"} if is_end else set())
    assert list(windows_of(outcomes).values()) == WINDOWS[: case.step + 1 if is_end else None]
    check_equal(outcomes, WINDOWS[: case.step] + ([] if is_end else WINDOWS[case.step + 1 :]))


def out_of_memory(case: Case) -> None:
    """All ranks make their micro-batches smaller, and the step again; or all end, where one sample does not fit."""
    most = case.draw.choice((0, 1, 2, 4))
    print(f"no memory for more than {most} samples")

    def alter(net: Net, loss: Tensor) -> Any:
        size = len(net.seen[-1][1])
        net.sizes = [*getattr(net, "sizes", ()), size]
        if case.is_here and net.global_step >= case.step and size > most:
            raise torch.OutOfMemoryError("a fault of the test")
        return loss

    loader = DataLoader(Subset(DATA, range(STEPS * GLOBAL)), batch_size=BATCH)

    def in_rank() -> Outcome:
        net, notes = Net(alter), {}
        outcome = fit(
            net, loader, max_epochs=EPOCHS, global_batch_size=GLOBAL, micro_batch_size="auto", notes=notes
        )  # fmt: skip
        notes["size"] = net.sizes[-1]
        return outcome

    outcomes = in_ranks(in_rank, case.directory)
    check_errors(outcomes, set() if most else {"out-of-memory"})
    assert {one.notes["size"] for one in outcomes} == {max(1, most)}, [one.notes for one in outcomes]
    found = [sorted(set(window)) for window in windows_of(outcomes).values()]
    assert found == WINDOWS[: None if most else case.step + 1], f"samples by step: {found}"
    check_equal(outcomes, WINDOWS[: None if most else case.step])


def metric_gets_worse(case: Case) -> None:
    """All ranks stop after the same epoch, though the value of one of them gets better."""
    epoch, is_nan = case.draw.randrange(1, 3), case.is_second
    print(f"the metric is {'nan' if is_nan else 'worse'} in epoch {epoch}")

    def alter(net: Net, loss: Tensor) -> Any:
        value = 10.0 - net.current_epoch
        if case.is_here and net.current_epoch >= epoch:
            value = float("nan") if is_nan else 1e3
        net.log("score", value, on_step=False, on_epoch=True)
        return loss

    outcomes = case.run(alter, max_epochs=5, callbacks=[EarlyStopping("score", patience=1)])
    check_errors(outcomes, set())
    assert {one.steps for one in outcomes} == {STEPS * (epoch + 1)}, [one.steps for one in outcomes]
    check_equal(outcomes, WINDOWS[:STEPS] * (epoch + 1))


def time_is_up(case: Case) -> None:
    """All ranks stop at the end of this step or the next one."""
    print("the clock of one rank says that the time is up")
    steps = [0]

    def alter(net: Net, loss: Tensor) -> Any:
        steps[0] = net.global_step
        return loss

    def clock() -> float:
        return 1e6 if case.is_here and steps[0] >= case.step else 0.0

    outcomes = case.run(alter, callbacks=[Timer({"seconds": 60}, clock=clock, verbose=False)])
    check_errors(outcomes, set())
    done = outcomes[0].steps
    # It is seen after step `case.step`, and told in the message of the next one, or at the end of the epoch.
    assert done == case.step + (1 if (case.step + 1) % STEPS == 0 else 2), f"stopped after {done} steps"
    check_equal(outcomes, WINDOWS[:done])


def out_of_data(case: Case) -> None:
    """All ranks stop where the first has no more, or all end with the error; a stream tells nobody before."""
    policy = "error" if case.is_second else "stop"
    shorter, longer = sorted(case.draw.sample(range(1, 12), 2))
    print(f"{shorter} batches on this rank, {longer} on the other one, uneven={policy!r}")
    lengths = [shorter, longer] if case.rank == 0 else [longer, shorter]
    shares = [list(range(start, start + BATCH * number)) for start, number in zip((0, 200), lengths, strict=True)]
    outcomes = in_ranks(
        lambda: fit(
            Net(), DataLoader(Stream(shares), batch_size=BATCH), accumulate_grad_batches=SIZE, max_epochs=1,
            uneven=policy,
        ),
        case.directory,
    )  # fmt: skip
    check_errors(outcomes, {"uneven"} if policy == "error" else set())
    windows = [
        [number for share in shares for number in share[start : start + BATCH * SIZE]]
        for start in range(0, BATCH * longer, BATCH * SIZE)
    ]
    whole = shorter // SIZE if policy == "error" else -(-shorter // SIZE)
    check_equal(outcomes, windows[:whole])


class Failing(Callback):
    """From a step on, what this rank writes fails."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        if self.case.is_now(pl_module):
            trainer.run.fabric.saves.settle()
            trainer.run.fabric.saves.write = fail
        elif trainer.global_step == self.case.step:
            trainer.run.fabric.saves.settle()


def fail(file: BinaryIO, data: bytes | memoryview) -> None:
    """A `Write`."""
    raise PermissionError("a fault of the test")


def save_fails(case: Case) -> None:
    """All ranks go on, or all end with the error after the same step; in the way of training, or beside it."""
    policy, is_async = "raise" if case.is_second else "warn", case.draw.random() < 0.5
    print(f"a save fails, on_save_error={policy!r}, {'beside training' if is_async else 'in its way'}")
    keeper = ModelCheckpoint(
        case.directory / "kept", "{step}", every_n_train_steps=1, save_top_k=-1, save_async=is_async,
        on_save_error=policy,
    )  # fmt: skip
    outcomes = case.run(callbacks=[Failing(case), keeper])
    check_errors(outcomes, {"checkpoint-write", "checkpoint-other-rank"} if policy == "raise" else set())
    done = outcomes[0].steps
    if policy == "raise":
        assert done == case.step if not is_async else done >= case.step, f"ended after step {done}"
        assert outcomes[case.rank].code == "checkpoint-write", outcomes[case.rank].error
    else:
        assert done == len(WINDOWS), f"ended after step {done}"
    check_equal(outcomes, WINDOWS[:done])
    paths = list_checkpoints(case.directory / "kept")
    assert [path.name for path in paths] == [f"step={step}.ckpt" for step in range(1, case.step)], paths
    assert not any(map(problems, paths)) and not list((case.directory / "kept").glob(".*"))


def step_is_skipped(case: Case) -> None:
    """A rank has no loss: the step is that of the others. Or its scaled loss overflows: no rank makes the step."""
    if case.is_second:
        print("a rank has no loss")
        outcomes = case.run(lambda net, loss: None if case.is_now(net) else loss)
        own = [number for step, numbers in outcomes[case.rank].seen if step == case.step for number in numbers]
        windows = list(WINDOWS)
        windows[case.step] = [number for number in windows[case.step] if number not in own]
        check_errors(outcomes, set())
        check_equal(outcomes, windows)
        return
    print("a scaled loss overflows")

    def outcomes_of(ranks: Sequence[int]) -> list[Outcome]:
        def alter(net: Net, loss: Tensor) -> Any:
            return loss * INF if net.global_step == case.step and net.global_rank in ranks else loss

        return case.run(alter, precision="16-mixed")

    outcomes, expected = outcomes_of([case.rank]), outcomes_of([0, 1])
    check_errors([*outcomes, *expected], set())
    assert len({(one.steps, one.digest) for one in (*outcomes, *expected)}) == 1, "not the same step was skipped"
    assert outcomes[0].digest != outcomes_of([])[0].digest, "no step was skipped"


KINDS = (
    gradient_is_inf, out_of_memory, metric_gets_worse, time_is_up, out_of_data, save_fails, step_is_skipped,
)  # fmt: skip


def trial(seed: int, directory: Path) -> None:
    """One kind after the other, on a rank and at a step that are drawn."""
    case = Case(seed, directory)
    print(f"{KINDS[seed % len(KINDS)].__name__} on rank {case.rank} in step {case.step}")
    KINDS[seed % len(KINDS)](case)


ROW = Row(
    "R-19", "what one rank decides alone: inf, memory, metric, time, data, save, skip", trial, trials=70, smoke=7,
    timeout_s=60,
)  # fmt: skip
