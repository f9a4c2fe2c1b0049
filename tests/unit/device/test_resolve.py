"""`accelerator` and `devices` as users write them, on a machine without an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from drivetrain import ConfigError, DeviceError, Fabric, Trainer
from drivetrain.device.accelerator import ACCELERATORS, CPUAccelerator
from drivetrain.device.resolve import DeviceRequest, resolve_devices

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without GPUs")


@pytest.mark.parametrize(
    ("devices", "num_devices", "is_auto"),
    [("auto", 1, True), (-1, 1, False), ("-1", 1, False), (3, 3, False), ("2", 2, False)],
)
def test_cpu_ranks_are_counted(devices: int | str, num_devices: int, is_auto: bool) -> None:
    """More or fewer ranks would be started than were asked for."""
    request = resolve_devices("cpu", devices)
    assert (request.kind, request.num_devices, request.is_auto) == ("cpu", num_devices, is_auto)
    assert request.device_of(7) == torch.device("cpu")


@needs_no_gpu
def test_auto_takes_what_is_there() -> None:
    """A script that runs on a GPU would not run on a laptop."""
    assert resolve_devices().kind in ("cpu", "mps")


@needs_no_gpu
@pytest.mark.parametrize("accelerator", ["cuda", "gpu"])
def test_a_device_that_is_not_there_is_an_error(accelerator: str) -> None:
    """A long run would start on the CPU without a word."""
    with pytest.raises(DeviceError) as caught:
        resolve_devices(accelerator)
    assert caught.value.code == "device-missing" and torch.__version__ in str(caught.value)


def test_an_unknown_accelerator_is_told_what_there_is() -> None:
    """A typing error would end in the depths of torch."""
    with pytest.raises(ConfigError, match=r"accelerator='cudaa' is not known\.\n.*'cuda'") as caught:
        resolve_devices("cudaa")
    assert caught.value.code == "accelerator"


@pytest.mark.parametrize("devices", [0, -2, True, "two", [], 1.5, None])
def test_a_number_of_devices_that_means_nothing_is_refused(devices: int | str | Sequence[int]) -> None:
    """No rank, or one rank too many, would be started."""
    with pytest.raises(ConfigError) as caught:
        resolve_devices("cpu", devices)
    assert caught.value.code == "devices" and repr(devices) in str(caught.value)


@pytest.mark.parametrize("devices", [[0], [0, 1], "0,1"])
def test_a_cpu_has_no_indices(devices: str | list[int]) -> None:
    """`devices=[0, 1]` would be read as something that the user does not mean."""
    with pytest.raises(ConfigError, match="which a CPU does not have") as caught:
        resolve_devices("cpu", devices)
    assert caught.value.code == "devices"


def test_ranks_get_the_gpus_that_were_named() -> None:
    """Two runs that share a machine would use the same GPUs."""
    request = DeviceRequest("cuda", (2, 5), False)
    assert [request.device_of(rank).index for rank in range(2)] == [2, 5]
    with pytest.raises(DeviceError, match=r"Local rank 2 has no device: 2 are in use, \[2, 5\]"):
        request.device_of(2)


def test_an_accelerator_is_an_object_too() -> None:
    """A script that gives or asks for one would fail."""
    assert resolve_devices(CPUAccelerator(), 2).num_devices == 2
    for kind, one in ACCELERATORS.items():
        assert one.name() == kind and one.auto_device_count() >= int(one.is_available())
    trainer = Trainer(accelerator=CPUAccelerator(), devices=1)
    assert isinstance(trainer.accelerator, CPUAccelerator) and trainer.accelerator == ACCELERATORS["cpu"]
    fabric = Fabric(accelerator="cpu", devices=1)
    assert fabric.accelerator.is_available() and fabric.accelerator.name() == "cpu"
