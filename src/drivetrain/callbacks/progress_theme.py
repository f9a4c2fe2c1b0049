"""How a live bar looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RichProgressBarTheme:
    """The styles of a bar's parts, as rich names them: `"green"`, `"bold #ff8800"`; and how its values are written.

    Attributes:
        description: What runs.
        progress_bar: The part of the bar that is done.
        progress_bar_finished: All of it, when it is full.
        progress_bar_pulse: Of a bar without a total.
        batch_progress: How many steps or batches are done.
        time: The time that is left.
        processing_speed: Steps or batches in a second.
        metrics: The values.
        metrics_text_delimiter: Between two values.
        metrics_format: Of floating-point values, as `format` takes it.
    """

    description: str = ""
    progress_bar: str = "bar.complete"
    progress_bar_finished: str = "bar.finished"
    progress_bar_pulse: str = "bar.pulse"
    batch_progress: str = ""
    time: str = ""
    processing_speed: str = ""
    metrics: str = ""
    metrics_text_delimiter: str = ", "
    metrics_format: str = ".4g"
