"""Windows that change their size during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivetrain.loop.callback import Callback
from drivetrain.loop.window_sizes import WindowSizes


class GradientAccumulationScheduler(Callback):
    """Changes the number of micro-batches of a window, as `Trainer(accumulate_grad_batches=...)` does.

    Args:
        scheduling: The first epoch of each size, such as `{0: 8, 4: 4, 8: 1}` (1 before the first of them); or a
            function from the optimizer steps done to the size of the next window.

    Attributes:
        window_sizes: Read by the trainer.

    Raises:
        ConfigError: A size is not a number from 1.
    """

    def __init__(self, scheduling: Mapping[int, int] | Callable[[int], int]) -> None:
        self.scheduling = scheduling
        self.window_sizes = WindowSizes(scheduling, "scheduling")
