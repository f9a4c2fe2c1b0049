"""One number of a row."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import LoggingError


def as_float(name: str, value: Any) -> float:
    """A value as a float.

    Raises:
        LoggingError: It is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoggingError(
            f"log_metrics got {name}={value!r}, which is not a number.",
            code="log-value",
            do="Log one number for a name.",
        ) from error
