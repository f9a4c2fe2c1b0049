"""What all windows of a loop have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from drivetrain.base.errors import ConfigError
from drivetrain.strategies.prepared import Prepared
from drivetrain.strategies.strategy import Strategy

_UNEVEN = ("error", "join", "stop")


@dataclass
class Clip:
    """How gradients are clipped before the step: by global norm, by value, or not at all."""

    max_norm: float | None = None
    max_value: float | None = None


@dataclass
class WindowJob:
    """What all windows of a loop have in common.

    Attributes:
        strategy: Owns the sync.
        prepared: The modules whose gradients belong to the step.
        optimizers: They step together at the end of the window.
        size: Micro-batches of a full window on each rank, as a function of the steps done.
        clip: Applied between rescaling and the step.
        uneven: What to do when ranks hold different numbers of batches: `"error"`, `"join"` (go on until the last
            one is through), `"stop"` (all stop when the first has no more).
        num_steps: Windows done so far.
        has_said_empty: A window without weight was said.
    """

    strategy: Strategy
    prepared: Sequence[Prepared]
    optimizers: Sequence[Optimizer]
    size: Callable[[int], int] = lambda step: 1
    clip: Clip = field(default_factory=Clip)
    uneven: str = "error"
    num_steps: int = 0
    has_said_empty: bool = False

    def __post_init__(self) -> None:
        if self.uneven not in _UNEVEN:
            raise ConfigError(
                f"uneven={self.uneven!r} is not a policy.", code="uneven-policy", do=f"Use one of {', '.join(_UNEVEN)}."
            )
        self.parameters: list[nn.Parameter] = _unique(p for one in self.prepared for p in one.parameters)
        self.collectives = self.strategy.collectives
        self.num_ranks = self.collectives.world_size
        self.num_shards = self.strategy.data_shard().count
        self.num_averaged = self.num_ranks if self.strategy.traits.syncs_gradients else 1

    def clip_gradients(self) -> None:
        """Clip as asked for, if at all; after the gradients are rescaled.

        Ranks: all.
        """
        if self.clip.max_norm is not None or self.clip.max_value is not None:
            self.strategy.clip_gradients(self.parameters, max_norm=self.clip.max_norm, max_value=self.clip.max_value)


def _unique(parameters: Iterator[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in parameters}.values())
