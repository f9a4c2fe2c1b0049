"""`FSDPStrategy`: drivetrain's `FSDP` with arguments as scripts spell them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.lightning.familiar_arguments import own_arguments, own_start, seconds
from drivetrain.lightning.outside import Outside
from drivetrain.strategies.fsdp import FSDP

_SHARDINGS: dict[str, tuple[bool | None, Any]] = {  # reshard_after_forward, num_replicas
    "FULL_SHARD": (None, None),  # torch's default: all but the rest of the module, which backward begins with
    "SHARD_GRAD_OP": (False, None),
    "HYBRID_SHARD": (None, "nodes"),
    "_HYBRID_SHARD_ZERO2": (False, "nodes"),
}


class FSDPStrategy(FSDP):
    """`drivetrain.FSDP`: these spellings, and all arguments of its own. An `FSDP` is an instance of it, too.

    Args:
        auto_wrap_policy: `shard`.
        activation_checkpointing: `activation_checkpointing_policy`.
        cpu_offload: As for `FSDP`, or a `CPUOffload` of torch's older FSDP.
        sharding_strategy: A name, or torch's `ShardingStrategy`: `"FULL_SHARD"` is the default,
            `"SHARD_GRAD_OP"` is `reshard_after_forward=False`, `"HYBRID_SHARD"` is `num_replicas="nodes"` unless
            another number is given.
        device_mesh: Replicas, and ranks of each: `num_replicas`, if there are so many ranks.
        limit_all_gathers: Only true: parts are never gathered further ahead than memory allows.
        state_dict_type: Only `"sharded"`.
        process_group_backend: `backend`.
        timeout: `timeout_s`.
        start_method: `start`: `"popen"` is `"script"`; `"spawn"` and `"fork"`.
        accelerator: Compared with that of the run.
        cluster_environment: Compared with the variables of the run; see `Outside`.
        own: Arguments of `FSDP`.

    Raises:
        ConfigError: One is given twice, is not known, or asks for what `FSDP` does not do.
    """

    def __init__(
        self,
        *,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        cpu_offload: Any = None,
        sharding_strategy: Any = None,
        device_mesh: Sequence[int] | None = None,
        limit_all_gathers: bool = True,
        state_dict_type: str = "sharded",
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        start_method: str | None = None,
        accelerator: Any = None,
        cluster_environment: Any = None,
        **own: Any,
    ) -> None:
        _check_only(limit_all_gathers, state_dict_type)
        self.mesh_size = _check_mesh(device_mesh)
        reshards, replicas = _sharding(sharding_strategy)
        num_replicas = ("sharding_strategy", None if "num_replicas" in own else replicas)
        familiar = {
            "shard": ("auto_wrap_policy", auto_wrap_policy),
            "activation_checkpointing_policy": ("activation_checkpointing", activation_checkpointing),
            "cpu_offload": ("cpu_offload", getattr(cpu_offload, "offload_params", cpu_offload)),
            "reshard_after_forward": ("sharding_strategy", reshards),
            "num_replicas": ("device_mesh", self.mesh_size[0]) if self.mesh_size else num_replicas,
            "backend": ("process_group_backend", process_group_backend),
            "timeout_s": ("timeout", seconds(timeout)),
            "start": ("start_method", own_start(start_method)),
        }
        super().__init__(**own_arguments(FSDP, own, familiar))
        self.outside = Outside(accelerator, cluster_environment)

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Compare what was said of the world outside, and go on as `FSDP` does.

        Ranks: all.

        Raises:
            ConfigError: There are not as many ranks as the mesh has.
        """
        self.outside.check(cluster, self.device_type)
        if self.mesh_size and self.mesh_size[0] * self.mesh_size[1] != cluster.world_size:
            raise ConfigError(
                f"device_mesh={self.mesh_size} cannot be made of {cluster.world_size} ranks.",
                code="num-replicas",
                do="Its product must be the number of ranks; or use num_replicas.",
                rank=(cluster.rank, cluster.world_size),
            )
        super().init_process_groups(cluster, stack)

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return True if cls is FSDPStrategy and FSDP in other.__mro__ else NotImplemented


def _check_only(limit_all_gathers: bool, state_dict_type: str) -> None:
    if limit_all_gathers is not True:
        raise ConfigError(
            f"limit_all_gathers={limit_all_gathers!r} asks FSDP to gather without a limit.",
            code="fsdp-argument",
            do="Leave it out: FSDP2 frees each part in order, so nothing waits for a limit.",
        )
    if state_dict_type != "sharded":
        raise ConfigError(
            f"state_dict_type={state_dict_type!r}: each rank writes its shards, so that none needs memory for all.",
            code="fsdp-argument",
            do="Leave it out: such a checkpoint loads on any number of ranks, and into any strategy. For one file with "
            "all weights run\n'drivetrain checkpoint export PATH model.safetensors'.",
        )


def _check_mesh(device_mesh: Any) -> tuple[int, ...]:
    if device_mesh is None:
        return ()
    if isinstance(device_mesh, (tuple, list)) and [type(one) for one in device_mesh] == [int, int]:
        return tuple(device_mesh)
    raise ConfigError(
        f"device_mesh={device_mesh!r} is not the number of replicas and of ranks in each.",
        code="fsdp-argument",
        do="Use device_mesh=(2, 4), for example, or num_replicas=2. Inside of a run the mesh is module.device_mesh.",
    )


def _sharding(sharding_strategy: Any) -> tuple[bool | None, Any]:
    name = getattr(sharding_strategy, "name", sharding_strategy)
    name = name.upper() if isinstance(name, str) else name
    if name is None or name in _SHARDINGS:
        return _SHARDINGS[name or "FULL_SHARD"]
    raise ConfigError(
        f"sharding_strategy={sharding_strategy!r} shards nothing."
        if name == "NO_SHARD"
        else f"sharding_strategy={sharding_strategy!r} is not known.",
        code="fsdp-argument",
        do="Use strategy=DDPStrategy(), which keeps a copy on each rank."
        if name == "NO_SHARD"
        else f"Use one of {', '.join(map(repr, _SHARDINGS))}.",
    )
