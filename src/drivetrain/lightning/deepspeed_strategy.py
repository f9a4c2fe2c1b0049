"""`DeepSpeedStrategy`: drivetrain's `FSDP` for scripts that ask for DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.lightning.deepspeed_settings import PASSED_OVER_ARGUMENTS, check_formats, read_settings
from drivetrain.lightning.familiar_arguments import own_arguments, seconds
from drivetrain.lightning.outside import Outside
from drivetrain.precision.precision import Precision, make_precision
from drivetrain.strategies.fsdp import FSDP
from drivetrain.strategies.prepared import Running

_FORMATS = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
_REFUSED = (
    "remote_device", "partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
    "synchronize_checkpoint_boundary", "exclude_frozen_parameters",
)  # fmt: skip


class DeepSpeedStrategy(FSDP):
    """What DeepSpeed's ZeRO shards, sharded by `drivetrain.FSDP` (torch's FSDP2). No engine of DeepSpeed runs.

    The step is the same. Optimizers are torch's, and checkpoints drivetrain's: `drivetrain checkpoint export` makes one
    file of one, which is what `convert_zero_checkpoint_to_fp32_state_dict` is for.

    Args:
        stage: In stage 3 parameters are sharded again after the forward that has gathered them; in stages 1 and 2,
            which are the same here, after backward (`reshard_after_forward=False`). In all of them a rank steps on its
            shards, and holds no other parameters, gradients or optimizer state between steps. By default that of
            `config`, or 2.
        offload_optimizer: `cpu_offload=True`: optimizer state, gradients and parameters' shards are in the memory of
            the host between computations.
        offload_parameters: The same.
        offload_optimizer_device: Only `"cpu"`.
        offload_params_device: Only `"cpu"`.
        zero_optimization: Only true.
        config: Settings of DeepSpeed: a dict, or the path of a JSON file. Which are read, and which are passed over, is
            in docs/concepts/fsdp.md; any other one is an error.
        process_group_backend: `backend`.
        timeout: `timeout_s`.
        accelerator: Compared with that of the run.
        cluster_environment: Compared with the variables of the run; see `Outside`.
        own: Arguments of `FSDP`; and others of DeepSpeed's strategy, which are taken as settings are.

    Raises:
        ConfigError: One is given twice, is not known, or asks for what `FSDP` does not do.
    """

    def __init__(
        self,
        *,
        stage: int | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        offload_optimizer_device: str = "cpu",
        offload_params_device: str = "cpu",
        zero_optimization: bool = True,
        config: Mapping[str, Any] | str | Path | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        accelerator: Any = None,
        cluster_environment: Any = None,
        **own: Any,
    ) -> None:
        for name in PASSED_OVER_ARGUMENTS.split():
            own.pop(name, None)
        given = {name: own.pop(name) for name in _REFUSED if name in own}
        given |= {f"fp16.{name}": own.pop(name) for name in _FORMATS if name in own}
        if stage is not None or not zero_optimization:
            given["zero_optimization.stage"] = stage if zero_optimization else 0
        if offload_optimizer:
            given["zero_optimization.offload_optimizer.device"] = offload_optimizer_device
        if offload_parameters:
            given["zero_optimization.offload_param.device"] = offload_params_device
        zero = read_settings(config, given)
        familiar = {
            "reshard_after_forward": (f"stage={zero.stage}: reshard_after_forward", None if zero.stage == 3 else False),
            "cpu_offload": ("offload_optimizer", zero.offloads or None),
            "find_unused_parameters": ("ignore_unused_parameters", zero.finds_unused),
            "backend": ("process_group_backend", process_group_backend),
            "timeout_s": ("timeout", seconds(timeout)),
        }
        super().__init__(**own_arguments(FSDP, own, familiar))
        self.stage = zero.stage
        self.formats = zero.formats
        self.outside = Outside(accelerator, cluster_environment)

    def open(
        self,
        cluster: ClusterInfo,
        device: torch.device,
        *,
        precision: Precision | str | None = None,
        devices: Sequence[torch.device] = (),
    ) -> Running:
        """Compare the number formats of `config` with those of the run, and go on as `FSDP` does.

        Ranks: all.

        Raises:
            ConfigError: They are others.
        """
        check_formats(self.formats, make_precision(precision))
        return super().open(cluster, device, precision=precision, devices=devices)

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Compare what was said of the world outside, and go on as `FSDP` does.

        Ranks: all.
        """
        self.outside.check(cluster, self.device_type)
        super().init_process_groups(cluster, stack)
