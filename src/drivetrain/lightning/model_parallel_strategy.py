"""`ModelParallelStrategy`: drivetrain's `FSDP` in which ranks share layers, as scripts spell it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Literal

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.lightning.familiar_arguments import own_arguments, seconds
from drivetrain.strategies.fsdp import FSDP

Size = int | Literal["auto"]


class ModelParallelStrategy(FSDP):
    """`drivetrain.FSDP(tensor_parallel_size=...)`: `configure_model` of a module shares layers, the rest is done here.

    It shares them over `self.device_mesh["tensor_parallel"]`, and does not call `fully_shard`: all parameters are
    sharded over `self.device_mesh["data_parallel"]` afterwards.

    Args:
        data_parallel_size: Ranks, or rows of ranks, that read data of their own. `"auto"`: what is left; with both
            `"auto"` the machines.
        tensor_parallel_size: Ranks that share layers. `"auto"`: what is left; with both `"auto"` those of a machine.
        save_distributed_checkpoint: Only true.
        process_group_backend: `backend`.
        timeout: `timeout_s`.
        own: Arguments of `FSDP`.

    Raises:
        ConfigError: An argument is given twice, is not known, or asks for what `FSDP` does not do.
    """

    def __init__(
        self,
        *,
        data_parallel_size: Size = "auto",
        tensor_parallel_size: Size = "auto",
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        **own: Any,
    ) -> None:
        if save_distributed_checkpoint is not True:
            raise ConfigError(
                f"save_distributed_checkpoint={save_distributed_checkpoint!r}: each rank writes its shards.",
                code="fsdp-argument",
                do="Leave it out. For one file with all weights run 'drivetrain checkpoint export PATH "
                "model.safetensors'.",
            )
        familiar = {
            "backend": ("process_group_backend", process_group_backend),
            "timeout_s": ("timeout", seconds(timeout)),
        }
        super().__init__(**own_arguments(FSDP, own, familiar))
        self.sizes = data_parallel_size, tensor_parallel_size

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Find the sizes that were not given, and go on as `FSDP` does.

        Ranks: all.

        Raises:
            ConfigError: They do not make up the ranks that are there.
        """
        of_data: Any
        of_layers: Any
        of_data, of_layers = self.sizes
        num_ranks = cluster.world_size
        if of_layers == "auto":
            of_layers = cluster.local_world_size if of_data == "auto" else max(1, num_ranks // of_data)
        if of_data == "auto":
            of_data = num_ranks // max(1, of_layers)
        if of_data * of_layers != num_ranks:
            raise ConfigError(
                f"data_parallel_size={of_data} and tensor_parallel_size={of_layers} do not make {num_ranks} ranks.",
                code="tensor-parallel",
                do="Their product must be the number of ranks.",
                rank=(cluster.rank, num_ranks),
            )
        self.tensor_parallel_size = of_layers
        super().init_process_groups(cluster, stack)
