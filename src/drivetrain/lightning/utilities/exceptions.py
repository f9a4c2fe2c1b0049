"""Errors of arguments that do not fit."""

from __future__ import annotations

from drivetrain.base.errors import ConfigError as MisconfigurationException

__all__ = ["MisconfigurationException"]
