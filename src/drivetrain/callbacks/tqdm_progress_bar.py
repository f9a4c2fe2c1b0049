"""The progress bar, under the name and with the argument of another one."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.callbacks.progress_bar import RichProgressBar


class TQDMProgressBar(RichProgressBar):
    """`RichProgressBar` for scripts that ask for this one; nothing of tqdm is used.

    Args:
        refresh_rate: 0 shows nothing. Any other number is a number of batches elsewhere; here the clock says when to
            refresh, so that a batch costs the same whatever it is.

    Raises:
        ConfigError: It is below 0.
    """

    def __init__(self, refresh_rate: int = 1) -> None:
        if refresh_rate < 0:
            raise ConfigError(
                f"TQDMProgressBar got refresh_rate={refresh_rate}.", code="refresh-rate", do="Use 0 for no bar, or 1."
            )
        super().__init__()
        self.refresh_rate = refresh_rate

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing is shown yet, or never."""
        super().setup(trainer, pl_module, stage)
        self._is_off = self._is_off or self.refresh_rate == 0
