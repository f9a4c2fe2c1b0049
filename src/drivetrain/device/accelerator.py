"""The kinds of devices, as objects that scripts ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True)
class Accelerator:
    """A kind of device. It is asked, and changes nothing: what runs where is for the strategy.

    Attributes:
        kind: `"cpu"`, `"cuda"` or `"mps"`.
    """

    kind: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """As `Trainer(accelerator=...)` takes it."""
        return cls.kind

    @staticmethod
    def is_available() -> bool:
        """This machine has such a device, and torch can use it."""
        raise NotImplementedError

    @staticmethod
    def auto_device_count() -> int:
        """How many of them `devices="auto"` means."""
        raise NotImplementedError


class CPUAccelerator(Accelerator):
    """The processor."""

    kind = "cpu"

    @staticmethod
    def is_available() -> bool:
        """Always."""
        return True

    @staticmethod
    def auto_device_count() -> int:
        """One: more ranks on a processor have to be asked for."""
        return 1


class CUDAAccelerator(Accelerator):
    """GPUs of NVIDIA, and of AMD by torch's ROCm builds."""

    kind = "cuda"

    @staticmethod
    def is_available() -> bool:
        """torch sees one."""
        return torch.cuda.is_available()

    @staticmethod
    def auto_device_count() -> int:
        """All that torch sees."""
        return torch.cuda.device_count()


class MPSAccelerator(Accelerator):
    """The GPU of an Apple machine."""

    kind = "mps"

    @staticmethod
    def is_available() -> bool:
        """torch sees it."""
        return torch.backends.mps.is_available()

    @staticmethod
    def auto_device_count() -> int:
        """One, if it is there."""
        return int(torch.backends.mps.is_available())


ACCELERATORS: dict[str, Accelerator] = {
    one.kind: one for one in (CPUAccelerator(), CUDAAccelerator(), MPSAccelerator())
}
