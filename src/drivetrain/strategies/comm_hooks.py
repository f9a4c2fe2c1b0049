"""What DDP may do with a bucket of gradients instead of summing it as it is. None of these is exact.

torch's own `bf16_compress_hook` is built for NCCL only (torch 2.13), so the casts are written out here; they work on
every backend.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from drivetrain.base.errors import ConfigError

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
_NAMES = ("bf16", "fp16", "powersgd")


def cast_hook(dtype: torch.dtype) -> Hook:
    """Send gradients as `dtype`: half the bytes of float32 for a 16-bit format; the sum is made in `dtype` too.

    Ranks: all run what it returns, once for each bucket (one all-reduce).
    """

    def hook(group: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        group = group if group is not None else dist.group.WORLD
        full = bucket.buffer()
        small = full.to(dtype).div_(dist.get_world_size(group))
        work = dist.all_reduce(small, group=group, async_op=True)
        assert work is not None

        def widen(future: torch.futures.Future[Any]) -> torch.Tensor:
            future.value()
            full.copy_(small)
            return full

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
        return future

    return hook


def register_hook(ddp: DistributedDataParallel, hook: str | Hook, state: Any = None) -> None:
    """Register a hook by name or as a function; a hook that cannot be registered is an error.

    Args:
        ddp: The wrapped module.
        hook: `"bf16"`, `"fp16"`, `"powersgd"`, or a function `(state, bucket) -> future`.
        state: Given to a hook of the user's own; for `"powersgd"` a `PowerSGDState`, by default one of rank 1 that
            starts at the second step.

    Raises:
        ConfigError: The name is not known.
    """
    if callable(hook):
        ddp.register_comm_hook(state, _without_annotations(hook))
    elif hook in ("bf16", "fp16"):
        cast = cast_hook(torch.bfloat16 if hook == "bf16" else torch.float16)
        ddp.register_comm_hook(None, _without_annotations(cast))
    elif hook == "powersgd":
        if state is None:
            # Error feedback and warm start need start >= 2 (Vogels et al. 2019, and torch's own check).
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        near = difflib.get_close_matches(str(hook), _NAMES, n=1)
        raise ConfigError(
            f"comm_hook={hook!r} is not known.",
            code="comm-hook",
            do=(f"Did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(_NAMES)}, or a function.",
        )


def _without_annotations(hook: Hook) -> Hook:
    """DDP refuses annotations that are text, as `from __future__ import annotations` leaves them."""

    def run(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    run.__annotations__ = {}
    run.__name__ = run.__qualname__ = getattr(hook, "__name__", type(hook).__name__)
    return run


def needs_one_bucket(hook: str | Hook | None) -> bool:
    """PowerSGD on gloo mixes up its collectives when there are several buckets (torch 2.13)."""
    return hook == "powersgd"
