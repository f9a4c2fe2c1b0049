"""Which devices a run uses: `accelerator` and `devices` as the user wrote them, to `torch.device` objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drivetrain.base.errors import ConfigError, DeviceError
from drivetrain.device.accelerator import ACCELERATORS, Accelerator

_KINDS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass(frozen=True)
class DeviceRequest:
    """Devices of one machine.

    Attributes:
        kind: `"cpu"`, `"cuda"` or `"mps"`.
        indices: One entry for each rank of this machine: the device's index (on a CPU just its number).
        is_auto: The user left the number open, so that a launcher outside may decide it.
    """

    kind: str
    indices: tuple[int, ...]
    is_auto: bool

    @property
    def num_devices(self) -> int:
        """Devices asked for on this machine."""
        return len(self.indices)

    def device_of(self, local_rank: int) -> torch.device:
        """The device of one rank of this machine.

        Raises:
            DeviceError: There are fewer devices than ranks.
        """
        if self.kind == "cpu":
            return torch.device("cpu")
        if self.kind == "mps":
            return torch.device("mps", 0)
        if self.is_auto and local_rank < torch.cuda.device_count():
            return torch.device("cuda", local_rank)
        if local_rank >= len(self.indices):
            raise DeviceError(
                f"Local rank {local_rank} has no device: {len(self.indices)} are in use, {list(self.indices)}.",
                code="device-missing",
                do="Start as many ranks on this machine as there are devices.",
            )
        return torch.device("cuda", self.indices[local_rank])


def resolve_devices(
    accelerator: str | Accelerator = "auto", devices: int | str | Sequence[int] = "auto"
) -> DeviceRequest:
    """Turn `accelerator` and `devices` into the devices of this machine.

    Args:
        accelerator: `"auto"` (CUDA, else MPS, else CPU), `"cpu"`, `"cuda"` (also `"gpu"`), `"mps"`, or an
            `Accelerator`.
        devices: A number of devices; `"auto"` or -1 for all (one on a CPU); a list or `"0,2"` for these GPUs.

    Raises:
        ConfigError: A value that means nothing.
        DeviceError: A device that is not there.
    """
    kind = _kind(accelerator)
    available = {"cpu": None, "cuda": torch.cuda.device_count(), "mps": 1}[kind]
    is_auto = devices == "auto"
    if devices in ("auto", -1, "-1"):
        return DeviceRequest(kind, tuple(range(available if available is not None else 1)), is_auto)
    indices = _indices(devices, kind)
    if available is not None and (max(indices) >= available):
        raise DeviceError(
            f"devices={devices!r} asks for {kind} devices {list(indices)}; this machine has {available}.",
            code="device-missing",
            do=f"Use devices={available} or devices='auto'.",
        )
    return DeviceRequest(kind, indices, False)


def _kind(accelerator: str | Accelerator) -> str:
    if isinstance(accelerator, Accelerator):
        accelerator = accelerator.name()
    if accelerator not in _KINDS:
        raise ConfigError(
            f"accelerator={accelerator!r} is not known.",
            code="accelerator",
            do=f"Use one of {', '.join(repr(kind) for kind in _KINDS)}.",
        )
    has = {kind: one.is_available() for kind, one in ACCELERATORS.items()}
    if accelerator == "auto":
        return "cuda" if has["cuda"] else "mps" if has["mps"] else "cpu"
    if accelerator == "gpu":
        accelerator = "mps" if has["mps"] and not has["cuda"] else "cuda"
    if not has[accelerator]:
        raise DeviceError(
            f"accelerator={accelerator!r} was asked for, but torch {torch.__version__} sees no such device here.",
            code="device-missing",
            do="Use accelerator='auto' to take what is there, or install a torch build for your device.",
        )
    return accelerator


def _indices(devices: int | str | Sequence[int], kind: str) -> tuple[int, ...]:
    if isinstance(devices, str) and "," in devices:
        devices = [int(part) for part in devices.split(",") if part.strip()]
    elif isinstance(devices, str) and devices.strip().isdigit():
        devices = int(devices)
    if isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1:
        return tuple(range(devices))
    if isinstance(devices, Sequence) and not isinstance(devices, str) and len(devices) > 0:
        if kind != "cpu" and len(set(devices)) == len(devices) and all(index >= 0 for index in devices):
            return tuple(devices)
        if kind == "cpu":
            raise ConfigError(
                f"devices={list(devices)!r} names devices by index, which a CPU does not have.",
                code="devices",
                do=f"Use devices={len(devices)} for that many ranks on this CPU.",
            )
    raise ConfigError(
        f"devices={devices!r} is not a number of devices.",
        code="devices",
        do="Use a number from 1, 'auto', -1 for all, or a list of GPU indices such as [0, 2].",
    )
