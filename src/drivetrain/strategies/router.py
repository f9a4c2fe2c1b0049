"""The one way from a wrapper into the user's module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn


class Router(nn.Module):
    """Runs a named method of the user's module when it is called.

    A wrapper such as `DistributedDataParallel` does its work around `forward`. It wraps a router, so that every
    method of the user's module runs inside that work: `wrapper("training_step", batch, 0)`.

    Args:
        module: The user's module.
        context: What each call runs in (autocast), as a factory.
    """

    def __init__(self, module: nn.Module, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        super().__init__()
        self.module = module
        self.context = None if context is nullcontext else context
        self.training = module.training  # of the router alone: parts of the module may be in eval mode

    def forward(self, method: str | None, *args: Any, **kwargs: Any) -> Any:
        """Run `method` of the module; `None` gives a zero loss that reaches every trainable parameter."""
        if method is None:
            return zero_loss(self.module)
        module: Any = self._modules["module"]  # the same as `self.module`, without torch's search for it
        target = module if method == "forward" else getattr(module, method)
        if self.context is None:
            return target(*args, **kwargs)
        with self.context():
            return target(*args, **kwargs)


def zero_loss(module: nn.Module) -> Tensor:
    """A loss of 0 whose gradient is 0 for every trainable parameter, whatever the parameters hold."""
    return sum((p.flatten()[:0].sum() for p in module.parameters() if p.requires_grad), start=_NOTHING)


_NOTHING: Any = 0
