"""The grid: every cut of a window, on every number of ranks, with every remainder and all kinds of weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drivetrain.base.errors import ConfigError
from drivetrain.strategies.by_name import make_strategy
from drivetrain.testing.comm_counter import parameter_bytes
from drivetrain.testing.rank_runner import RankRunner
from tests.ranks.window_runs import WEIGHTS, Case, Expected, Note, Outcome, make_net, run_cases, train_alone

CUTS = ((1, 8), (2, 4), (4, 2), (8, 1))  # samples of a micro-batch x micro-batches of a window, on each rank
REMAINDERS = range(8)  # samples that the last window of the epoch has on all ranks together; 0: it is full
TRAINER_REMAINDERS = (5,)  # a trainer runs on the same windows, so that a part of its runs, which cost more, will do
NUM_FULL_WINDOWS = 1
SMALL = 72  # bytes: the most that may be sent beside the gradients in a window


@dataclass(frozen=True)
class GridStrategy:
    """A strategy of the grid.

    Attributes:
        name: As `make_strategy` knows it.
        dtype: Of parameters and data.
        tolerance: The largest difference of a gradient that is put down to rounding.
        worlds: Numbers of ranks.
        syncs_alone: Gradients are sent on one rank, too.
    """

    name: str
    dtype: torch.dtype
    tolerance: float
    worlds: tuple[int, ...] = (1, 2, 4)
    syncs_alone: bool = False

    @property
    def is_known(self) -> bool:
        """There is a strategy of this name."""
        try:
            make_strategy(self.name, num_ranks=2)
        except ConfigError:
            return False
        return True


STRATEGIES = (
    GridStrategy("single_device", torch.float64, 1e-12, worlds=(1,)),
    GridStrategy("ddp", torch.float64, 1e-12, syncs_alone=True),
    GridStrategy("fsdp", torch.float32, 1e-6),
)


@dataclass
class Judgement:
    """What cases came to, beside one process.

    Attributes:
        num_cases: How many.
        num_steps: Optimizer steps of all of them.
        num_windows: Windows; those without any weight make no step.
        num_syncs: Gradient syncs of a rank.
        num_messages: Reductions beside them.
        worst: The largest difference of a gradient.
        worst_loss: The largest difference of a window's loss.
        worst_parameter: The largest difference of a parameter after the last step.
        problems: What is not as it should be.
    """

    num_cases: int = 0
    num_steps: int = 0
    num_windows: int = 0
    num_syncs: int = 0
    num_messages: int = 0
    worst: float = 0.0
    worst_loss: float = 0.0
    worst_parameter: float = 0.0
    problems: list[str] = field(default_factory=list)


def grid_cases(world: int) -> Iterator[Case]:
    """All cases of a number of ranks, and some of them with a trainer too."""
    for (batch_size, size), remainder, weights in itertools.product(CUTS, REMAINDERS, WEIGHTS):
        case = Case(batch_size, size, NUM_FULL_WINDOWS * batch_size * size * world + remainder, weights)
        yield case
        if remainder in TRAINER_REMAINDERS:
            yield dataclasses.replace(case, loop="trainer")


def measure(
    runner: RankRunner, strategy: GridStrategy, cases: Sequence[Case], *, world: int, timeout_s: float = 240
) -> Judgement:
    """Run cases on ranks, in one call, and compare them with one process.

    Ranks: none; the calling process is not a rank.
    """
    by_rank = runner.run(run_cases, strategy.name, strategy.dtype, cases, world=world, timeout_s=timeout_s)
    judgement = Judgement()
    for case, outcomes in zip(cases, zip(*by_rank, strict=True), strict=True):
        judge(judgement, strategy, case, outcomes)
    return judgement


def judge(judgement: Judgement, strategy: GridStrategy, case: Case, outcomes: Sequence[Outcome]) -> None:
    """Compare what a case came to on all ranks with one process, and add it to a judgement."""
    expected, parameters = train_alone(case, outcomes, strategy.dtype)
    judgement.num_cases += 1
    found: list[str] = []
    for rank, outcome in enumerate(outcomes):
        if len(outcome.windows) != len(expected):
            found.append(f"{len(outcome.windows)} windows on rank {rank}, not {len(expected)}")
        apart = _distance(outcome.parameters, parameters)
        judgement.worst_parameter = max(judgement.worst_parameter, apart)
        if apart > len(expected) * strategy.tolerance:
            found.append(f"parameters of rank {rank} differ by {apart:.1e}")
    by_window = zip(*(outcome.windows for outcome in outcomes), strict=False)
    for index, (own, notes) in enumerate(zip(expected, by_window, strict=False)):
        found += [f"window {index} of {len(expected)}: {one}" for one in _judge_window(judgement, strategy, own, notes)]
    judgement.problems += [f"{strategy.name} on {len(outcomes)} ranks, {case}: {problem}" for problem in found]


def _judge_window(
    judgement: Judgement, strategy: GridStrategy, expected: Expected, notes: Sequence[Note]
) -> Iterator[str]:
    """What is not right with a window, given the notes of all ranks."""
    judgement.num_windows += 1
    judgement.num_steps += expected.gradient is not None
    if sorted(number for note in notes for number in note.seen) != sorted(expected.numbers):
        yield "it holds other samples"
    loss = _loss_of(notes)
    apart = 0.0 if math.isnan(loss) and math.isnan(expected.loss) else abs(loss - expected.loss)
    judgement.worst_loss = max(judgement.worst_loss, apart)
    if not apart <= strategy.tolerance:
        yield f"the loss is {loss}, not {expected.loss}"
    full = parameter_bytes(make_net(strategy.dtype))
    is_synced = len(notes) > 1 or strategy.syncs_alone
    for rank, note in enumerate(notes):
        apart = _distance(note.gradient, expected.gradient)
        judgement.worst = max(judgement.worst, apart)
        if not apart <= strategy.tolerance:
            yield f"the gradient of rank {rank} differs by {apart:.1e}"
        num_syncs, rest = divmod(note.num_bytes, full)
        if num_syncs != is_synced or rest > SMALL or note.num_calls - num_syncs > (len(notes) > 1):
            yield f"rank {rank} made {note.num_calls} reductions of {note.num_bytes} bytes"
    judgement.num_syncs += notes[0].num_bytes // full
    judgement.num_messages += notes[0].num_calls - notes[0].num_bytes // full


def _loss_of(notes: Sequence[Note]) -> float:
    """The mean over a window and all ranks."""
    weight = sum(note.weight for note in notes)
    return sum(note.loss for note in notes) / weight if weight else math.nan


def _distance(made: Tensor | None, exact: Tensor | None) -> float:
    """The largest difference; infinite where there is one and should be none, or the other way round."""
    if made is None or exact is None:
        return 0.0 if made is exact else math.inf
    apart = float((made - exact).abs().max())
    return math.inf if math.isnan(apart) else apart
