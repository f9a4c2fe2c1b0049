"""Hyperparameters."""

from __future__ import annotations

from drivetrain.loop.hyper_parameters import AttributeDict

__all__ = ["AttributeDict"]
