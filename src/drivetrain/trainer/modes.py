"""Parts of a module that are in eval mode when training begins."""

from __future__ import annotations

import warnings

from torch import nn


def say_eval_mode(module: nn.Module) -> None:
    """Warn of them, since they stay so; not of a part that is frozen as a whole (a teacher, for example)."""
    frozen: set[nn.Module] = set()
    for one in module.modules():
        needs = [parameter.requires_grad for parameter in one.parameters()]
        if needs and not any(needs):
            frozen.update(one.modules())
    parts = [name for name, one in module.named_modules() if not one.training and one not in frozen]
    if parts:
        names = [name or "the model itself" for name in parts]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"In eval mode, and left so while training: {shown}. Call train() where that is not meant.", stacklevel=2
        )
