"""What scripts take from the folder of this name."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder

_PARTS = ("exceptions", "parsing", "rank_zero", "types")
_NAMES = {
    "AttributeDict": "drivetrain.loop.hyper_parameters",
    "rank_zero_info": "drivetrain.cluster.rank_zero",
    "rank_zero_only": "drivetrain.cluster.rank_zero",
    "rank_zero_warn": "drivetrain.cluster.rank_zero",
}

__all__ = sorted((*_NAMES, *_PARTS))
__getattr__ = finder(__name__, _NAMES, parts=_PARTS)
