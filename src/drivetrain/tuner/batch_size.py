"""The largest micro-batch that fits into memory, by short runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drivetrain.base.errors import ConfigError, OutOfMemoryError
from drivetrain.fabric.fabric import Fabric
from drivetrain.fabric.micro_batch_finder import MicroBatchFinder, is_out_of_memory
from drivetrain.loop.callback import Callback
from drivetrain.loop.window_sizes import WindowSizes
from drivetrain.trainer.request import Request
from drivetrain.trainer.view import TrainerView
from drivetrain.tuner.trial import free_memory, run_trial


@dataclass
class SizeSearch:
    """How sizes are tried.

    Attributes:
        mode: `"power"`: doubled until one does not fit. `"binsearch"`: then between the last two, to the sample.
        num_steps: Optimizer steps of each trial.
        first: The size to begin with.
        max_trials: Sizes tried at most.
        probe: Called with the number of samples before each micro-batch; may raise an out-of-memory error. Stands in
            for a device's memory.
    """

    mode: str = "power"
    num_steps: int = 3
    first: int = 2
    max_trials: int = 25
    probe: Callable[[int], None] | None = None
    tried: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in ("power", "binsearch"):
            raise ConfigError(
                f"scale_batch_size got mode={self.mode!r}.", code="batch-size", do="Use 'power' or 'binsearch'."
            )
        if min(self.num_steps, self.first, self.max_trials) < 1:
            raise ConfigError(
                f"scale_batch_size got steps_per_trial={self.num_steps}, init_val={self.first}, "
                f"max_trials={self.max_trials}.",
                code="batch-size",
                do="Use 1 or more.",
            )

    def run(self, fits: Callable[[int], int | None]) -> int:
        """Search.

        Args:
            fits: Tries a size: how many samples of it there were, or `None` if they do not fit.

        Raises:
            OutOfMemoryError: Not even one sample fits.
        """
        size, good, bad = self.first, 0, 0  # 0: none yet
        for _ in range(self.max_trials):
            num_samples = fits(size)
            self.tried[size] = num_samples is not None
            if num_samples is None:
                bad = size
            else:
                good = min(size, num_samples)
                if num_samples < size:  # the data have no more
                    break
            if not good:
                if bad == 1:
                    break
                size = bad // 2
            elif not bad:
                size = good * 2
            elif self.mode == "binsearch" and bad - good > 1:
                size = (good + bad) // 2
            else:
                break
        if not good:
            raise OutOfMemoryError(
                f"A micro-batch of {bad} sample{'s' if bad > 1 else ''} does not fit into memory.",
                code="out-of-memory",
                do="Use activation checkpointing, a smaller model or number format, or a strategy that shards.",
            )
        return good


class _Observer(Callback):
    """Notes how many samples the first step took, on all ranks together."""

    num_samples = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.run.train_loader.plan_is_said = True  # the plan of a trial is nobody's

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.num_samples = self.num_samples or trainer.progress.samples


def find_batch_size(fabric: Fabric, trainer: TrainerView, request: Request, search: SizeSearch) -> tuple[int, Any]:
    """Search in this rank: the size, and which were tried.

    Ranks: all.
    """
    num_shards = fabric.strategy.data_shard().count

    def fits(size: int) -> int | None:
        observer = _Observer()
        is_missing = False
        try:
            run_trial(
                fabric, trainer, request, observer, num_steps=search.num_steps, global_batch_size=size * num_shards,
                given_micro_batch_size=MicroBatchFinder(size, smallest=size, probe=search.probe),
                window_sizes=WindowSizes(1), remainder="step",
            )  # fmt: skip
        except Exception as error:
            # The first is agreed on by all ranks; another rank would wait for one that fails alone.
            is_alone = fabric.collectives.world_size == 1 and is_out_of_memory(error)
            if not (isinstance(error, OutOfMemoryError) or is_alone):
                raise
            is_missing = True
        free_memory()
        return None if is_missing else -(-observer.num_samples // num_shards)

    return search.run(fits), search.tried
