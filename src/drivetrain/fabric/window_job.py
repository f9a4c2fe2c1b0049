"""What all windows of a loop have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError, UnevenDataError
from drivetrain.fabric.agreement import Agreement
from drivetrain.fabric.micro_batch_finder import MicroBatchFinder
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy

_UNEVEN = ("join", "stop", "error")
_REMAINDER = ("step", "carry", "drop")
_NONFINITE = ("ignore", "skip", "error")
_SAID = {
    "weight": "A window had no weight on any rank: its optimizer step was skipped.",
    "non-finite": "A window had a loss or gradient that is inf or nan: its optimizer step was skipped.",
    "drop": "The last micro-batches of an epoch did not fill a window: they were dropped (remainder='drop').",
}


@dataclass
class Clip:
    """How gradients are clipped before the step: by global norm, by value, or not at all."""

    max_norm: float | None = None
    max_value: float | None = None


@dataclass(frozen=True)
class Carried:
    """What an epoch leaves to the first window of the next one; the gradients stay where they are.

    Attributes:
        num: Micro-batches of it.
        nominal: The weight by which losses were divided.
        weight: This rank's so far.
    """

    num: int
    nominal: float
    weight: Any


@dataclass(eq=False)
class WindowJob:
    """What all windows of a loop have in common.

    Attributes:
        strategy: Owns the sync.
        prepared: The modules whose gradients belong to the step.
        optimizers: They step together at the end of the window.
        size: Micro-batches of a full window on each rank, as a function of the steps done.
        clip: Applied between rescaling and the step.
        uneven: What to do when ranks hold different numbers of batches: `"join"` (go on until the last one is
            through), `"stop"` (all stop when the first has no more), `"error"`.
        remainder: What to do with micro-batches that do not fill a window at the end of an epoch: `"step"` (with the
            right scale), `"carry"` (into the next epoch), `"drop"`.
        nonfinite: What to do about a loss or gradient that is inf or nan: `"ignore"`, `"skip"` the step, `"error"`.
        wants_stop: This rank would like the run to stop.
        wants_end: This rank was told by a signal to end: to save what there is, and leave.
        finder: Splits micro-batches that do not fit into memory, where that was asked for.
        num_steps: Windows that stepped so far.
        skipped: Windows that made no step, by reason.
        carried: Of the last epoch.
        has_stepped: The last window changed the weights: it was not skipped.
        own_clip: Clips instead of `clip`, if `clips`.
    """

    strategy: Strategy
    prepared: Sequence[Prepared]
    optimizers: Sequence[Optimizer]
    size: Callable[[int], int] = lambda step: 1
    clip: Clip = field(default_factory=Clip)
    uneven: str = "join"
    remainder: str = "step"
    nonfinite: str = "ignore"
    wants_stop: Callable[[], bool] = lambda: False
    wants_end: Callable[[], bool] = lambda: False
    finder: MicroBatchFinder | None = None
    num_steps: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    carried: Carried | None = None
    has_stepped: bool = True
    own_clip: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.uneven not in _UNEVEN:
            raise ConfigError(
                f"uneven={self.uneven!r} is not a policy.", code="uneven-policy", do=f"Use one of {', '.join(_UNEVEN)}."
            )
        if self.remainder not in _REMAINDER:
            raise ConfigError(
                f"remainder={self.remainder!r} is not a policy.",
                code="remainder-policy",
                do=f"Use one of {', '.join(_REMAINDER)}.",
            )
        if self.nonfinite not in _NONFINITE:
            raise ConfigError(
                f"nonfinite={self.nonfinite!r} is not a policy.",
                code="non-finite-policy",
                do=f"Use one of {', '.join(_NONFINITE)}.",
            )
        if self.finder is not None and self.strategy.traits.communicates_in_forward:
            raise ConfigError(
                f"micro_batch_size='auto' needs ranks that can fail alone, but each forward of "
                f"{type(self.strategy).__name__} communicates.",
                code="batch-size",
                do="Give micro_batch_size as a number.",
            )
        self.parameters: list[nn.Parameter] = unique(p for one in self.prepared for p in one.parameters)
        self.collectives = self.strategy.collectives
        self.device = self.strategy.device
        self.num_ranks = self.collectives.world_size
        self.num_shards = self.strategy.data_shard().count
        self.runs_in_step = self.strategy.traits.communicates_in_forward and self.num_ranks > 1
        self.num_averaged = self.num_ranks if self.strategy.traits.syncs_gradients else 1
        self.no_agreement = Agreement(self.collectives)  # of one rank
        self.clips = self.clip.max_norm is not None or self.clip.max_value is not None
        self.steps_apart = self.strategy.traits.steps_apart and self.num_ranks > 1

    def clip_gradients(self) -> None:
        """Clip as asked for, if `clips`; after the gradients are rescaled.

        Ranks: all.
        """
        if self.own_clip is not None:
            self.own_clip()
            return
        self.strategy.clip_gradients(self.parameters, max_norm=self.clip.max_norm, max_value=self.clip.max_value)

    def has_finite_gradients(self) -> bool:
        """All gradients are finite; equal on all ranks after the sync. Reads one number back from the device.

        Ranks: all where parameters are sharded; any otherwise.
        """
        norm = self.strategy.clip_gradients(self.parameters, max_norm=float("inf"))
        return norm is None or math.isfinite(float(norm))

    def check_even(self, num_with_data: float, *, has_batch: bool) -> None:
        """Refuse ranks that ran out of data before others, unless that was asked for.

        Raises:
            UnevenDataError: On all ranks alike.
        """
        if self.uneven != "error" or num_with_data == self.num_ranks:
            return
        raise UnevenDataError(
            f"{self.num_ranks - int(num_with_data)} of {self.num_ranks} ranks ran out of data; this one "
            f"{'has more' if has_batch else 'is one of them'}.",
            code="uneven",
            do="Give all ranks the same number of batches, or choose uneven='join' (every sample counts once) or "
            "'stop'.",
            rank=(self.collectives.rank, self.num_ranks),
        )

    def check_equally_long(self, num: int) -> None:
        """Refuse ranks that ran out of data within the same window, unless that was asked for.

        Ranks: all (one small message, if they are to be refused).

        Args:
            num: Micro-batches of the window on this rank.

        Raises:
            UnevenDataError: On all ranks alike.
        """
        if self.uneven != "error":
            return
        most, fewest = self.collectives.agree([float(num), -float(num)], "max")
        if most != -fewest:
            has_most = num == most
            self.check_even(self.collectives.agree([float(has_most)])[0], has_batch=has_most)

    def note_skipped(self, reason: str) -> None:
        """Count a window without a step; each reason is said once."""
        if reason not in self.skipped and reason in _SAID:
            warnings.warn(_SAID[reason], stacklevel=4)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def unique(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters, each once."""
    return list({id(parameter): parameter for parameter in parameters}.values())
