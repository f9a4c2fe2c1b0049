"""How much is trained on in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.loop.callback import Callback


class ThroughputMonitor(Callback):
    """Writes steps, samples, tokens and operations in a second to the loggers, of all ranks together.

    The speed is that between two rows of the loggers: there values are read back from the device anyway, so that all
    work up to it is done; nothing is read in between. The time of validation is left out, that of saving is not.

    Args:
        tokens_fn: The units (tokens, pixels) of a batch on this rank: a number, or a 0-dim tensor, which is read with
            the row.
        flops_per_sample: Operations that forward and backward of one sample take.
        peak_flops: Operations in a second that one device can do at most, for the part of them that is used (`mfu`).
        clock: Seconds.

    Attributes:
        values: What was written last, by name.

    Raises:
        ConfigError: `peak_flops` without `flops_per_sample`.
    """

    runs_last = True

    def __init__(
        self,
        tokens_fn: Callable[[Any], Any] | None = None,
        *,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if peak_flops is not None and flops_per_sample is None:
            raise ConfigError(
                f"ThroughputMonitor got peak_flops={peak_flops} without flops_per_sample.",
                code="throughput",
                do="Give both, or none.",
            )
        self.tokens_fn = tokens_fn
        self.flops_per_sample, self.peak_flops = flops_per_sample, peak_flops
        self.values: dict[str, float] = {}
        self._clock = clock
        self._mark: tuple[float, int, int] | None = None  # seconds, steps, samples
        self._tokens: Any = 0
        self._evaluated_s = self._evaluation_start = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first row begins to measure: what is compiled or warmed up before it does not count."""
        self._mark, self._tokens = None, 0

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Training stands still."""
        self._evaluation_start = self._clock()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Training goes on."""
        self._evaluated_s += self._clock() - self._evaluation_start

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count units."""
        if self.tokens_fn is not None:
            self._tokens = self._tokens + self.tokens_fn(batch)

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the speed since the last row.

        Ranks: all (one small message for each row, if units are counted).
        """
        if not trainer.is_log_step:
            return
        tokens, self._tokens = float(self._tokens), 0
        if self.tokens_fn is not None and trainer.world_size > 1:
            tokens = trainer.collectives.agree([tokens])[0] / trainer.collectives.num_alike
        now, steps, samples = self._clock() - self._evaluated_s, trainer.global_step, trainer.progress.samples
        mark, self._mark = self._mark, (now, steps, samples)
        if mark is None or now <= mark[0]:
            return
        seconds = now - mark[0]
        self.values = self._values(
            trainer, (steps - mark[1]) / seconds, (samples - mark[2]) / seconds, tokens / seconds
        )
        for logger in trainer.loggers:
            logger.log_metrics(self.values, step=steps)

    def _values(self, trainer: Any, steps: float, samples: float, tokens: float) -> dict[str, float]:
        values = {"throughput/steps_per_s": steps, "throughput/samples_per_s": samples}
        if self.tokens_fn is not None:
            values["throughput/tokens_per_s"] = tokens
        if self.flops_per_sample is not None:
            flops = values["throughput/flops_per_s"] = samples * self.flops_per_sample
            if self.peak_flops is not None:
                values["throughput/mfu"] = flops / (self.peak_flops * trainer.world_size)
        return values
