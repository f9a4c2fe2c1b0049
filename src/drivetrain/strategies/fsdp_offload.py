"""Shards in the memory of the host: whether they can be there, and what torch is told."""

from __future__ import annotations

import warnings

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from drivetrain.base.errors import ConfigError


def check_offload(cpu_offload: bool | OffloadPolicy, *, backends: str) -> None:
    """Refuse what torch would refuse later, or in a collective.

    Args:
        cpu_offload: As it was given.
        backends: Of the default process group, as torch writes them: `"cpu:gloo,cuda:nccl"`.

    Raises:
        ConfigError: It says nothing of offloading, or nobody sums gradients that are in the host's memory.
    """
    if not isinstance(cpu_offload, (bool, OffloadPolicy)):
        raise ConfigError(
            f"cpu_offload={cpu_offload!r} says nothing of offloading.",
            code="cpu-offload",
            do="Use True, or a CPUOffloadPolicy of torch.distributed.fsdp.",
        )
    if is_offload(cpu_offload) and "cpu:" not in backends:
        raise ConfigError(
            f"cpu_offload={cpu_offload!r}, but the backend of the process group, {backends!r}, has nothing for tensors "
            "of the CPU: norms of gradients could not be summed, nor states gathered.",
            code="cpu-offload",
            do="Leave backend out, or use backend='cpu:gloo,cuda:nccl'.",
        )


def is_offload(cpu_offload: bool | OffloadPolicy) -> bool:
    """Shards are to be in the host's memory."""
    return cpu_offload is True or isinstance(cpu_offload, CPUOffloadPolicy)


def make_offload(cpu_offload: bool | OffloadPolicy, device: torch.device, *, is_global_zero: bool) -> OffloadPolicy:
    """What torch is told.

    Where ranks compute on the CPU it changes nothing, which rank 0 says.

    Args:
        cpu_offload: As it was given.
        device: Where ranks compute.
        is_global_zero: This is rank 0.
    """
    if not is_offload(cpu_offload):
        return OffloadPolicy()
    if device.type == "cpu":
        if is_global_zero:
            warnings.warn(
                "cpu_offload changes nothing here: the ranks compute on the CPU, so their shards are in its memory.",
                stacklevel=3,
            )
        return CPUOffloadPolicy(pin_memory=False)  # only a GPU can read pinned memory
    return cpu_offload if isinstance(cpu_offload, CPUOffloadPolicy) else CPUOffloadPolicy()
