"""What scripts take from the folder of this name."""

from __future__ import annotations

from drivetrain.lightning.familiar import finder
from drivetrain.lightning.paths import home_of

_NAMES = (
    "AttributeDict", "CombinedLoader", "grad_norm", "move_data_to_device", "rank_zero_debug", "rank_zero_info",
    "rank_zero_only", "rank_zero_warn",
)  # fmt: skip

__all__ = sorted((*_NAMES, "types"))
__getattr__ = finder(__name__, {name: home_of(name) for name in _NAMES}, parts=("types",))
