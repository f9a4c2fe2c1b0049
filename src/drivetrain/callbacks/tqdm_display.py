"""Progress that is shown by bars of tqdm which a user has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.callbacks.progress_display import Display, Status


class TqdmDisplay(Display):
    """Draws each status with a bar that is asked for when it is first needed.

    Args:
        makers: What a status is the progress of (`"train"`, or a title such as `"Validation"`) to what makes its bar.
        interval_s: Seconds between two refreshes.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]], interval_s: float) -> None:
        self.interval_s = interval_s
        self._makers = makers
        self._bars: dict[str, Any] = {}
        self._titles: dict[str, str] = {}

    def show(self, status: Status) -> None:
        """Draw it."""
        key = status.key
        if key not in self._bars:
            self._bars[key] = self._makers["train" if key == "train" else status.title]()
        bar = self._bars[key]
        if self._titles.get(key) != status.title:  # its speed is that of this epoch
            bar.reset(total=status.num_all)
            self._titles[key] = status.title
            if key == "train":
                bar.set_description(status.title, refresh=False)
        bar.total, bar.n = status.num_all, status.num_done
        if status.values:
            bar.set_postfix(dict(status.values), refresh=False)
        bar.refresh()

    def remove(self, key: str) -> None:
        """Take its bar away."""
        if key in self._bars:
            self._bars.pop(key).close()
            del self._titles[key]

    def close(self) -> None:
        """Close all bars; those that are to stay stay on the screen."""
        for key in list(self._bars):
            self.remove(key)
