"""Where progress is shown: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TextIO

from drivetrain.callbacks.progress_theme import RichProgressBarTheme


@dataclass(frozen=True)
class Status:
    """What is shown.

    Attributes:
        key: `"train"` or `"evaluation"`: each has a bar of its own.
        title: What runs, e.g. `"Epoch 3/10"`.
        num_done: Of `unit`.
        num_all: `None` if it is not known.
        unit: `"steps"` or `"batches"`.
        per_second: The speed; `None` if it is not known yet.
        values: Logged with `prog_bar=True`.
    """

    key: str
    title: str
    num_done: int
    num_all: int | None
    unit: str
    per_second: float | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def count(self) -> str:
        """`340/1000 steps`."""
        return (
            f"{self.num_done}/{self.num_all} {self.unit}"
            if self.num_all is not None
            else f"{self.num_done} {self.unit}"
        )

    def details(self) -> list[str]:
        """Speed, time left and values."""
        return [text for _, text in self.parts(RichProgressBarTheme())[1:]]

    def parts(self, theme: RichProgressBarTheme) -> list[tuple[str, str]]:
        """Count, speed, time left and values, each after its style."""
        parts = [(theme.batch_progress, self.count())]
        if self.per_second:
            parts.append((theme.processing_speed, f"{self.per_second:.3g} {self.unit}/s"))
            if self.num_all is not None and self.num_done < self.num_all:
                left = timedelta(seconds=int((self.num_all - self.num_done) / self.per_second))
                parts.append((theme.time, f"{left} left"))
        written = theme.metrics_format
        return parts + [
            (theme.metrics, f"{name}={format(value, written) if isinstance(value, float) else value}")
            for name, value in self.values.items()
        ]


class Display(ABC):
    """Shows one status after another.

    Attributes:
        interval_s: Seconds between two of them.
    """

    interval_s: float

    @abstractmethod
    def show(self, status: Status) -> None:
        """Show a status in place of the last one with its key."""

    def end(self, status: Status) -> None:
        """An epoch or a stage has ended with this status."""
        self.show(status)

    def remove(self, key: str) -> None:
        """A part has ended that need not be seen any longer."""

    def close(self) -> None:
        """Leave the screen in order."""


class LineDisplay(Display):
    """One line for each status.

    The ends of epochs get lines, too: of a short run all of them, of many short epochs the first ones, then one for
    each line of the interval, and the last.

    Args:
        file: Where to.
        interval_s: Seconds between two lines.
        num_spare: How many ends of epochs in a row get a line.
    """

    def __init__(self, file: TextIO, interval_s: float, *, num_spare: int = 20) -> None:
        self.interval_s = interval_s
        self._file = file
        self._max_spare = self._num_spare = num_spare
        self._held: Status | None = None

    def show(self, status: Status) -> None:
        """Print it."""
        self._num_spare = min(self._max_spare, self._num_spare + 1)
        self._print(status)

    def end(self, status: Status) -> None:
        """Print it, unless too many were printed; the last one is, when the display is closed."""
        if self._num_spare > 0:
            self._num_spare -= 1
            self._print(status)
        else:
            self._held = status

    def close(self) -> None:
        """Print what was held back."""
        if self._held is not None:
            self._print(self._held)

    def _print(self, status: Status) -> None:
        print(f"{status.title}: {', '.join([status.count(), *status.details()])}", file=self._file, flush=True)
        self._held = None


class LiveDisplay(Display):
    """A bar for training and one below it while something is evaluated. It has no thread of its own.

    Args:
        console: Of rich, on a terminal.
        interval_s: Seconds between two refreshes.
        theme: How it looks.
    """

    def __init__(self, console: Any, interval_s: float, theme: RichProgressBarTheme | None = None) -> None:
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

        class Words(ProgressColumn):
            """Text with styles."""

            def render(self, task: Any) -> Any:
                """As it was made."""
                return task.fields["words"]

        self.interval_s = interval_s
        self._theme = theme = theme or RichProgressBarTheme()
        self._tasks: dict[str, Any] = {}
        self._progress = Progress(
            TextColumn("{task.description}", style=theme.description or "none", markup=False),
            BarColumn(
                bar_width=24,
                complete_style=theme.progress_bar,
                finished_style=theme.progress_bar_finished,
                pulse_style=theme.progress_bar_pulse,
            ),
            Words(),
            console=console,
            auto_refresh=False,
        )
        self._progress.start()

    def show(self, status: Status) -> None:
        """Draw it."""
        if status.key not in self._tasks:
            self._tasks[status.key] = self._progress.add_task(status.title, total=None, words="")
        self._progress.update(
            self._tasks[status.key],
            description=status.title,
            total=status.num_all,
            completed=status.num_done,
            words=self._words(status),
        )
        self._progress.refresh()

    def _words(self, status: Status) -> Any:
        from rich.text import Text

        theme, parts = self._theme, status.parts(self._theme)
        first_value = len(parts) - len(status.values)
        words = Text()
        for index, (style, part) in enumerate(parts):
            words.append("" if index == 0 else theme.metrics_text_delimiter if index > first_value else ", ")
            words.append(part, style=style)
        return words

    def remove(self, key: str) -> None:
        """Take its bar away."""
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
            self._progress.refresh()

    def close(self) -> None:
        """Leave the bars as they are, and the cursor below them."""
        self._progress.stop()


def open_display(
    file: TextIO, *, refresh_s: float, line_every_s: float, theme: RichProgressBarTheme | None = None
) -> Display:
    """A live bar if `file` is a terminal that can move its cursor, else lines."""
    if file.isatty():
        from rich.console import Console

        console = Console(file=file)
        if console.is_terminal and not console.is_dumb_terminal:
            return LiveDisplay(console, refresh_s, theme)
    return LineDisplay(file, line_every_s)
