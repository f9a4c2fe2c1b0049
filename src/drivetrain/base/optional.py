"""Optional packages, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from drivetrain.base.errors import MissingExtraError


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Args:
        module: The module to import, e.g. `"torch.utils.tensorboard"`.
        extra: The extra of drivetrain's that installs it.
        purpose: What needs it, as the user knows it, e.g. `"TensorBoardLogger"`.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"{purpose} needs {module}, which cannot be imported ({cause}).",
            code="missing-extra",
            do=f"Install it with: pip install 'drivetrain[{extra}]'",
        ) from cause
