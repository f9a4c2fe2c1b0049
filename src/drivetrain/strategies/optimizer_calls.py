"""An optimizer's calls of each step, without torch's bookkeeping around them while nobody looks at it.

Torch (2.13) opens a profiler's record around each `step` and `zero_grad`, also while no profiler runs. For a small
model that takes as long as the step itself. What is called here is what torch calls inside of it; with a profiler, a
hook, or a method of the user's own, it is torch's own call as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as _torch

from drivetrain.base.recorded import is_recorded

# Where a torch of the future has other names, all calls are its own.
_AROUND_STEPS: Any = Optimizer.profile_hook_step(lambda: None).__code__  # what torch puts around each class's step
_BEFORE_ALL: Any = getattr(_torch, "_global_optimizer_pre_hooks", True)
_AFTER_ALL: Any = getattr(_torch, "_global_optimizer_post_hooks", True)


def step_once(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> None:
    """What `optimizer.step()` does; with a closure it is torch's own call."""
    step: Any = type(optimizer).step
    own = optimizer.__dict__
    is_usual = getattr(step, "__code__", None) is _AROUND_STEPS and "step" not in own
    if closure is not None:
        optimizer.step(closure)
    elif (
        not is_usual
        or own.get("_optimizer_step_pre_hooks", True)
        or own.get("_optimizer_step_post_hooks", True)
        or _BEFORE_ALL
        or _AFTER_ALL
        or is_recorded()
    ):
        optimizer.step()
    else:
        step.__wrapped__(optimizer)


def zero_gradients(optimizer: Optimizer) -> None:
    """What `optimizer.zero_grad()` does."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in optimizer.__dict__ or is_recorded():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
