"""A run that is killed anywhere and goes on is the run that was not killed: a check for a training of one's own."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.base.rng import capture_rng, restore_rng, seed_everything
from drivetrain.loop.callback import Callback
from drivetrain.testing.rank_runner import RankRunner
from drivetrain.testing.run_record import Event, RunRecord, first_difference

Make = Callable[[Path], tuple[Any, dict[str, Any]]]


class RunKilledError(Exception):
    """Ends a run in the place of a kill."""


@dataclass(frozen=True)
class Stop:
    """Where a run saves, and where it is killed.

    Attributes:
        step: It saves after this optimizer step.
        hook: In this hook.
        is_first: Before the hooks of other callbacks.
        lost_steps: How many steps more it makes before it is killed.
        number: Which time the hook is called at this step, from 0.
    """

    step: int
    hook: str = "on_step_end"
    is_first: bool = False
    lost_steps: int = 0
    number: int = 0

    def __str__(self) -> str:
        more = f", {self.lost_steps} steps later" if self.lost_steps else ""
        return f"saved in {self.hook} of step {self.step}, killed {more or 'there'}"


def assert_same_run(
    make: Make,
    *,
    stops: Iterable[int | Stop] | None = None,
    samples: Callable[[Any], Any] | None = None,
    num_ranks: int = 1,
    resumed_on: int | None = None,
    tolerance: float = 1e-9,
    directory: str | Path | None = None,
    ranks: RankRunner | None = None,
    seed: int = 1,
) -> None:
    """Train once without a stop, and for each stop once with a kill there and a resume; all have to be the same.

    Compared are, step by step: the samples of each micro-batch, weights and buffers, optimizers, schedulers and random
    state bit for bit, the values given to loggers, when validation runs, and the states of callbacks at the end.

    Ranks: none; the calling process is not a rank if there are several.

    Args:
        make: Makes a run: `make(directory)` returns a new `Trainer` and the arguments of its `fit`. The directory is an
            empty one for each run, for logs and checkpoints. Random numbers are seeded before.
        stops: Optimizer steps after which the run is killed; by default all of them.
        samples: What tells the samples of a batch apart, e.g. `lambda batch: batch["id"]`, so that a message can say
            which ones differ; by default their contents.
        num_ranks: Ranks of the runs, on the CPU.
        resumed_on: Ranks of those that go on; if they are others, weights are compared with a tolerance, and the
            samples of each step as a set.
        tolerance: The greatest difference of a weight then.
        directory: Where runs write; by default a temporary one.
        ranks: To use instead of processes that are started for this call.
        seed: For `seed_everything` before each run.

    Raises:
        AssertionError: It names the first thing that differs, and its step.
    """
    with ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="drivetrain-same-run-"))
        most = max(num_ranks, resumed_on or num_ranks)
        if ranks is None and most > 1:
            ranks = stack.enter_context(RankRunner(most))
        state = capture_rng()
        stack.callback(restore_rng, state)
        check = SameRun(make, Path(directory), samples=samples, num_ranks=num_ranks, ranks=ranks, seed=seed)
        for stop in check.all_stops() if stops is None else stops:
            found = check.difference(_as_stop(stop), resumed_on=resumed_on, tolerance=tolerance)
            assert found is None, (
                f"The run that goes on differs from the one that was not interrupted ({_as_stop(stop)}).\n"
                f"    First: {found}.\n"
                "    What is not in a checkpoint begins anew: keep state in buffers, in state_dict of callbacks, data "
                "and loaders, or in on_save_checkpoint."
            )


class SameRun:
    """One training, without a stop and with stops; see `assert_same_run`."""

    def __init__(
        self, make: Make, directory: Path, *, samples: Any = None, num_ranks: int = 1, ranks: RankRunner | None = None,
        seed: int = 1,
    ) -> None:  # fmt: skip
        self._make = make
        self._directory = directory
        self._samples = samples
        self._num_ranks = num_ranks
        self._ranks = ranks
        self._seed = seed
        self._num_runs = 0
        self._whole: list[Outcome] | None = None

    @property
    def whole(self) -> list[Outcome]:
        """By rank, of the run that is not interrupted."""
        if self._whole is None:
            self._whole = self.run(self.new_directory("whole"), self._num_ranks)
        return self._whole

    def all_stops(self) -> range:
        """After each optimizer step."""
        return range(1, self.whole[0].events[-1].step + 1)

    def new_directory(self, name: str) -> Path:
        """An empty one."""
        self._num_runs += 1
        path = self._directory / f"{name}-{self._num_runs}"
        path.mkdir(parents=True)
        return path

    def run(
        self, directory: Path, num_ranks: int, *, checkpoint: Path | None = None, stop: Stop | None = None
    ) -> list[Outcome]:
        """Train on some ranks, from a checkpoint, or up to a stop, whose checkpoint is then in the directory."""
        arguments = (self._make, directory, self._samples, self._seed, checkpoint, stop)
        if num_ranks == 1 and self._ranks is None:
            return [train_once(*arguments)]
        assert self._ranks is not None
        return self._ranks.run(train_once, *arguments, world=num_ranks, timeout_s=300)

    def difference(self, *stops: Stop, resumed_on: int | None = None, tolerance: float = 1e-9) -> str | None:
        """The first difference of a run that is killed at each of the stops and goes on; `None` without one."""
        directory = self.new_directory("stopped")
        before: list[list[Event]] = [[] for _ in self.whole]
        checkpoint: Path | None = None
        for stop in stops:
            killed = self.run(directory, self._num_ranks, checkpoint=checkpoint, stop=stop)
            if any(one.saved is None for one in killed):
                return f"it ends, and was to be {stop}"
            before = [old + one.events[: one.saved] for old, one in zip(before, killed, strict=True)]
            checkpoint = directory / str(stop.step) / "checkpoint"
        resumed = self.run(directory, resumed_on or self._num_ranks, checkpoint=checkpoint)
        if len(resumed) != len(self.whole):
            return other_ranks_difference(self.whole, before, resumed, tolerance)
        for rank, (whole, old, new) in enumerate(zip(self.whole, before, resumed, strict=True)):
            found = first_difference(whole.events, old + new.events)
            if found is not None:
                return f"on rank {rank}, {found}" if len(resumed) > 1 else found
        return None


@dataclass(frozen=True)
class Outcome:
    """What a run has given on one rank.

    Attributes:
        events: All that happened.
        saved: How many of them before its checkpoint; `None` if it has not written one.
        weights: At its end.
    """

    events: list[Event]
    saved: int | None
    weights: dict[str, Any]


def train_once(
    make: Make, directory: Path, samples: Any, seed: int, checkpoint: Path | None, stop: Stop | None
) -> Outcome:
    """Train in this rank."""
    outcome = _train(make, directory, samples, seed, checkpoint, stop)
    if multiprocessing.active_children():
        gc.collect()  # workers of loaders that nobody holds any more end here, and not in a fork
    return outcome


def _train(make: Make, directory: Path, samples: Any, seed: int, checkpoint: Path | None, stop: Stop | None) -> Outcome:
    seed_everything(seed, verbose=False)
    trainer, arguments = make(directory)
    record = RunRecord(samples)
    trainer.callbacks.insert(0, record)
    trainer.loggers.append(record.logger)
    saver = None
    if stop is not None:
        saver = _Saver(stop, directory / str(stop.step) / "checkpoint", record)
        if stop.is_first:
            trainer.callbacks.insert(1, saver)
        else:
            saver.runs_last = True
            trainer.callbacks.append(saver)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*cannot begin in the middle")
            trainer.fit(**arguments, ckpt_path=checkpoint)
    except RunKilledError:
        pass
    finally:
        trainer.strategy.close()
    weights = {name: value.detach().cpu() for name, value in arguments["model"].state_dict().items()}
    return Outcome(record.events, saver.num_events if saver is not None else None, weights)


def other_ranks_difference(
    whole: Sequence[Outcome], before: Sequence[Sequence[Event]], resumed: Sequence[Outcome], tolerance: float
) -> str | None:
    """The first difference to a run that has gone on on other ranks: of the samples of a step, or of the weights."""
    expected = _samples_of_steps([one.events for one in whole])
    found = _samples_of_steps([*before, *(one.events for one in resumed)])
    for step in sorted({*expected, *found}):
        if expected.get(step) != found.get(step):
            return f"step {step + 1} has samples {found.get(step)} and not {expected.get(step)}"
    for name, value in whole[0].weights.items():
        worst = float((value.double() - resumed[0].weights[name].double()).abs().max()) if value.numel() else 0.0
        if not worst <= tolerance:
            return f"at the end, weights {name!r} differ by {worst:.2g}"
    return None


def _samples_of_steps(of_ranks: Iterable[Iterable[Event]]) -> dict[int, list[Any]]:
    steps: dict[int, list[Any]] = {}
    for events in of_ranks:
        for event in events:
            if event.kind == "micro-batch":
                samples = event.values["samples"]
                steps.setdefault(event.step, []).extend(samples if isinstance(samples, list) else [samples])
    return {step: sorted(samples) for step, samples in steps.items()}


def _as_stop(stop: int | Stop) -> Stop:
    return stop if isinstance(stop, Stop) else Stop(stop)


class _Saver(Callback):
    """Saves in one hook, and kills the run there or some steps later."""

    def __init__(self, stop: Stop, path: Path, record: RunRecord) -> None:
        self.num_events: int | None = None
        self._stop, self._path, self._record = stop, path, record
        self._times = 0
        setattr(self, stop.hook, self._in_hook)

    @property
    def state_key(self) -> str:
        """Another one than those of the user's."""
        return "assert_same_run"

    def _in_hook(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        if trainer.global_step != self._stop.step or self.num_events is not None or trainer.sanity_checking:
            return
        self._times += 1
        if self._times <= self._stop.number:
            return
        trainer.save_checkpoint(self._path)
        self.num_events = len(self._record.events)
        if not self._stop.lost_steps:
            raise RunKilledError(str(self._stop))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Kill it."""
        if self.num_events is not None and trainer.global_step >= self._stop.step + self._stop.lost_steps:
            raise RunKilledError(str(self._stop))
