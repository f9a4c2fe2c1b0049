"""The progress bar under the name of another one, whose hooks it honours."""

from __future__ import annotations

import sys
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.base.optional import import_extra
from drivetrain.callbacks.progress_display import Display
from drivetrain.callbacks.rich_progress_bar import RichProgressBar
from drivetrain.callbacks.tqdm_display import TqdmDisplay

_MAKERS = ("init_train_tqdm", "init_validation_tqdm", "init_sanity_tqdm", "init_test_tqdm", "init_predict_tqdm")


class TQDMProgressBar(RichProgressBar):
    """`RichProgressBar` for scripts that ask for this one.

    A subclass that overrides one of the methods which make bars (`init_train_tqdm`, `init_validation_tqdm`,
    `init_sanity_tqdm`, `init_test_tqdm`, `init_predict_tqdm`) is drawn with the bars of tqdm that they give. Otherwise
    nothing of tqdm is used.

    Args:
        refresh_rate: 0 shows nothing. Any other number is a number of batches elsewhere; here the clock says when to
            refresh, so that a batch costs the same whatever it is.
        process_position: Lines above the bars of tqdm that belong to others.
        leave: The bar of training stays on the screen.

    Raises:
        ConfigError: `refresh_rate` is below 0.
    """

    makes_tqdm_bars = True  # such methods are refused elsewhere: nothing would call them

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = True) -> None:
        if refresh_rate < 0:
            raise ConfigError(
                f"TQDMProgressBar got refresh_rate={refresh_rate}.", code="refresh-rate", do="Use 0 for no bar, or 1."
            )
        super().__init__()
        self.refresh_rate, self.process_position, self.leave = refresh_rate, process_position, leave

    @property
    def is_enabled(self) -> bool:
        """This rank shows it."""
        return super().is_enabled and self.refresh_rate > 0

    def open_display(self) -> Display:
        """Bars of tqdm, if a subclass makes any; else as `RichProgressBar`."""
        kind = type(self)
        if all(getattr(kind, name) is getattr(TQDMProgressBar, name) for name in _MAKERS):
            return super().open_display()
        titles = (
            "train", self.validation_description, self.sanity_check_description, self.test_description,
            self.predict_description,
        )  # fmt: skip
        makers = {title: getattr(self, name) for title, name in zip(titles, _MAKERS, strict=True)}
        return TqdmDisplay(makers, self.refresh_s)

    def init_train_tqdm(self) -> Any:
        """The bar of tqdm for training, of optimizer steps. Override it to change it, or to give another one.

        Raises:
            MissingExtraError: tqdm is not installed.
        """
        return self._tqdm(self.train_description, leave=self.leave)

    def init_validation_tqdm(self) -> Any:
        """Likewise for validation, of batches."""
        return self._tqdm(self.validation_description, leave=False, line=1)

    def init_sanity_tqdm(self) -> Any:
        """Likewise for the sanity check."""
        return self._tqdm(self.sanity_check_description, leave=False)

    def init_test_tqdm(self) -> Any:
        """Likewise for the test."""
        return self._tqdm(self.test_description, leave=True)

    def init_predict_tqdm(self) -> Any:
        """Likewise for prediction."""
        return self._tqdm(self.predict_description, leave=True)

    def _tqdm(self, description: str, *, leave: bool, line: int = 0) -> Any:
        tqdm = import_extra("tqdm.auto", extra="tqdm", purpose="A bar of TQDMProgressBar")
        file = self._file if self._file is not None else sys.stderr
        return tqdm.tqdm(
            desc=description, position=2 * self.process_position + line, disable=self.is_disabled, leave=leave,
            dynamic_ncols=True, file=file,
        )  # fmt: skip
