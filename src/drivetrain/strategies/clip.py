"""Clipping gradients of which every rank holds all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drivetrain.base.errors import ConfigError, NonFiniteError


def check_clip(max_norm: float | None, max_value: float | None) -> None:
    """Refuse to clip by both or by neither.

    Raises:
        ConfigError: Both are given, or none is.
    """
    if (max_norm is None) == (max_value is None):
        raise ConfigError(
            f"clip_gradients got max_norm={max_norm} and max_value={max_value}.",
            code="clip",
            do="Give one of the two.",
        )


def clip_replicas(
    parameters: Sequence[nn.Parameter],
    max_norm: float | None,
    max_value: float | None,
    norm_type: float,
    *,
    error_if_nonfinite: bool,
) -> Tensor | None:
    """Scale to the norm, or clamp to the value; torch's own.

    Returns:
        The norm before scaling; `None` for `max_value`.

    Raises:
        NonFiniteError: The norm is inf or nan, and that is an error.
    """
    if max_norm is None:
        assert max_value is not None, "neither a norm nor a value"
        torch.nn.utils.clip_grad_value_(parameters, max_value)
        return None
    try:
        return torch.nn.utils.clip_grad_norm_(
            parameters, max_norm, norm_type=norm_type, error_if_nonfinite=error_if_nonfinite
        )
    except RuntimeError as cause:
        raise NonFiniteError(
            f"The gradients cannot be clipped: {cause}",
            code="non-finite",
            do="Look for the inf or nan in the loss, or pass error_if_nonfinite=False.",
        ) from cause
