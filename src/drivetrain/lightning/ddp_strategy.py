"""`DDPStrategy`: drivetrain's `DDP` with arguments as scripts spell them."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.lightning.familiar_arguments import own_arguments, own_start, seconds
from drivetrain.lightning.outside import Outside
from drivetrain.strategies.ddp import DDP


class DDPStrategy(DDP):
    """`drivetrain.DDP`: these spellings, and all arguments of its own. A `DDP` is an instance of it, too.

    Args:
        process_group_backend: `backend`.
        timeout: `timeout_s`.
        start_method: `start`: `"popen"` is `"script"`; `"spawn"` and `"fork"`.
        ddp_comm_hook: `comm_hook`.
        ddp_comm_state: `comm_state`.
        accelerator: Compared with that of the run.
        cluster_environment: Compared with the variables of the run; see `Outside`.
        own: Arguments of `DDP`.

    Raises:
        ConfigError: One is given twice, is not known, or does not fit the run.
    """

    def __init__(
        self,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        start_method: str | None = None,
        ddp_comm_hook: Any = None,
        ddp_comm_state: Any = None,
        accelerator: Any = None,
        cluster_environment: Any = None,
        **own: Any,
    ) -> None:
        familiar = {
            "backend": ("process_group_backend", process_group_backend),
            "timeout_s": ("timeout", seconds(timeout)),
            "start": ("start_method", own_start(start_method)),
            "comm_hook": ("ddp_comm_hook", ddp_comm_hook),
            "comm_state": ("ddp_comm_state", ddp_comm_state),
        }
        super().__init__(**own_arguments(DDP, own, familiar))
        self.outside = Outside(accelerator, cluster_environment)

    def init_process_groups(self, cluster: ClusterInfo, stack: ExitStack) -> None:
        """Compare what was said of the world outside, and go on as `DDP` does.

        Ranks: all.
        """
        self.outside.check(cluster, self.device_type)
        super().init_process_groups(cluster, stack)

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return True if cls is DDPStrategy and DDP in other.__mro__ else NotImplemented
