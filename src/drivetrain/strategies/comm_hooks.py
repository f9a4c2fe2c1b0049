"""What DDP may do with a bucket of gradients instead of summing it as it is. None of these is exact.

torch's own `bf16_compress_hook` is built for NCCL only (torch 2.13), so the casts are written out here; they work on
every backend.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from drivetrain.base.errors import ConfigError
from drivetrain.checkpoint.read import read_tensors
from drivetrain.checkpoint.state_files import StateFiles
from drivetrain.comm.collectives import Collectives
from drivetrain.strategies.power_sgd import PowerSGD
from drivetrain.strategies.prepared import Prepared

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


def register_hook(ddp: DistributedDataParallel, hook: str | Hook, state: Any = None) -> PowerSGD | None:
    """Register a hook by name or as a function; a hook that cannot be registered is an error.

    Args:
        ddp: The wrapped module.
        hook: `"bf16"`, `"fp16"`, `"powersgd"`, or a function `(state, bucket) -> future`.
        state: Given to a hook of the user's own; for `"powersgd"` a `PowerSGD`.

    Returns:
        What has to be saved with the module, if anything.

    Raises:
        ConfigError: The name is not known, or the state is not one of the hook's.
    """
    if hook == "powersgd":
        return _register_power_sgd(ddp, state)
    if callable(hook):
        ddp.register_comm_hook(state, _without_annotations(hook))
    elif hook in ("bf16", "fp16"):
        cast = cast_hook(torch.bfloat16 if hook == "bf16" else torch.float16)
        ddp.register_comm_hook(None, _without_annotations(cast))
    else:
        near = difflib.get_close_matches(str(hook), _NAMES, n=1)
        raise ConfigError(
            f"comm_hook={hook!r} is not known.",
            code="comm-hook",
            do=(f"Did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(_NAMES)}, or a function.",
        )
    return None


def _register_power_sgd(ddp: DistributedDataParallel, given: Any) -> PowerSGD:
    if given is not None and not isinstance(given, PowerSGD):
        raise ConfigError(
            f"comm_hook='powersgd' got comm_state={given!r:.80}.",
            code="comm-hook",
            do="Give it a drivetrain.PowerSGD(rank=...), or pass torch's own hook as a function with its state.",
        )
    kept = (given or PowerSGD()).of_module(ddp.module.module)
    ddp.register_comm_hook(ddp.process_group, _without_annotations(kept.sync))
    return kept


def _without_annotations(hook: Hook) -> Hook:
    """DDP refuses annotations that are text, as `from __future__ import annotations` leaves them."""

    def run(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    run.__annotations__ = {}
    run.__name__ = run.__qualname__ = getattr(hook, "__name__", type(hook).__name__)
    return run


def add_hook_states(state: Mapping[str, Any], files: StateFiles, *, rank: int) -> None:
    """Save what the hooks of a state's modules keep on this rank, if anything.

    Raises:
        CheckpointError: It cannot be written.
    """
    states = {name: kept.state_dict() for name, kept in _kept(state).items()}
    if states:
        files.add(_state_file(rank), states)


def read_hook_states(state: Mapping[str, Any], directory: Path, *, collectives: Collectives) -> None:
    """Put back what hooks kept. Saved by another number of ranks, what was not sent yet is lost, and said to be.

    Raises:
        CheckpointError: It cannot be read.
    """
    kept, num_saved = _kept(state), len(list(directory.glob(_state_file("*"))))
    if not kept or not num_saved:
        return
    is_own = num_saved == collectives.world_size
    saved: dict[str, Any] = read_tensors(directory / _state_file(collectives.rank if is_own else 0))
    for name, one in kept.items():
        if name in saved:
            one.load_state_dict(saved[name], has_errors=is_own)
    if not is_own and collectives.is_global_zero:
        warnings.warn(
            f"The checkpoint was saved by {num_saved} ranks and is loaded by {collectives.world_size}: what PowerSGD "
            "had not sent yet is lost.",
            stacklevel=2,
        )


def _kept(state: Mapping[str, Any]) -> dict[str, PowerSGD]:
    kept = {name: value.kept for name, value in state.items() if isinstance(value, Prepared)}
    return {name: one for name, one in kept.items() if isinstance(one, PowerSGD)}


def _state_file(rank: int | str) -> str:
    return f"comm_hook_{rank}.pt"
