"""What a script tells a strategy of the world outside, though the run knows it: compared, and not ignored."""

from __future__ import annotations

from typing import Any

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.cluster.read_cluster import current_cluster

_KINDS = {
    "auto": ("cpu", "cuda", "mps"), "cpu": ("cpu",), "gpu": ("cuda", "mps"), "cuda": ("cuda",), "mps": ("mps",),
}  # fmt: skip

# Of a cluster environment: its member, whether it is called, the variable that says it, and the field of a cluster.
_MEMBERS = (
    ("global_rank", True, "RANK", "rank"),
    ("world_size", True, "WORLD_SIZE", "world_size"),
    ("local_rank", True, "LOCAL_RANK", "local_rank"),
    ("node_rank", True, "GROUP_RANK", "node_rank"),
    ("main_address", False, "MASTER_ADDR", "main_address"),
    ("main_port", False, "MASTER_PORT", "main_port"),
)


class Outside:
    """An accelerator and a cluster environment that were given to a strategy.

    The run has both before there is a strategy: from `Trainer(accelerator=...)`, and from the variables of whatever
    started the ranks. So they have to say the same.

    Args:
        accelerator: A name as for `Trainer`, or an object whose class is called `CPUAccelerator` and the like.
        environment: An object that says who a rank is: `main_address`, `main_port` and `creates_processes_externally`
            are read; `world_size()`, `global_rank()`, `local_rank()` and `node_rank()` called, and where it does not
            create the processes `set_world_size` and `set_global_rank`, with what the run found.

    Raises:
        ConfigError: They mean nothing, or say that this process is a rank while its variables do not.
    """

    def __init__(self, accelerator: Any, environment: Any) -> None:
        self._environment = environment
        self._accelerator = ""
        if accelerator is not None:
            name = accelerator if isinstance(accelerator, str) else type(accelerator).__name__
            self._accelerator = name.removesuffix("Accelerator").lower()
            if self._accelerator not in _KINDS:
                raise ConfigError(
                    f"accelerator={accelerator!r} is not known.",
                    code="accelerator",
                    do="Leave it out, and use Trainer(accelerator='cpu'), 'cuda' or 'mps'.",
                )
        if environment is None:
            return
        lacking = [name for name, *_ in _MEMBERS if name not in dir(environment)]
        if lacking:
            raise ConfigError(
                f"cluster_environment={environment!r} has no {', '.join(lacking)}.",
                code="cluster-environment",
                do="Leave it out: the variables of torchrun, or RANK and its like, say who a rank is.",
            )
        cluster = current_cluster()
        if self._is_external and not cluster.is_launched and environment.world_size() > 1:
            self._check_cluster(cluster)

    def check(self, cluster: ClusterInfo, device_type: str) -> None:
        """Compare with what the run has found.

        Raises:
            ConfigError: They say something else.
        """
        if self._accelerator and device_type not in _KINDS[self._accelerator]:
            raise ConfigError(
                f"The strategy got accelerator={self._accelerator!r}, and the run computes on {device_type!r}.",
                code="accelerator",
                do=f"Say it once: Trainer(accelerator={self._accelerator!r}).",
                rank=(cluster.rank, cluster.world_size),
            )
        if self._environment is None:
            return
        if self._is_external:
            self._check_cluster(cluster)
            return
        for name, value in (("set_world_size", cluster.world_size), ("set_global_rank", cluster.rank)):
            getattr(self._environment, name, lambda value: None)(value)

    @property
    def _is_external(self) -> bool:
        return bool(getattr(self._environment, "creates_processes_externally", True))

    def _check_cluster(self, cluster: ClusterInfo) -> None:
        said = {}
        for name, is_called, variable, field in _MEMBERS:
            value = getattr(self._environment, name)
            said[variable] = (value() if is_called else value), getattr(cluster, field)
        differing = {name: both for name, both in said.items() if both[0] != both[1]}
        if not differing:
            return
        shown = ", ".join(f"{name} is {theirs!r} (here {ours!r})" for name, (theirs, ours) in differing.items())
        raise ConfigError(
            f"{type(self._environment).__name__} says of this process something else than its variables: {shown}.",
            code="cluster-environment",
            do="Who a rank is, is read from variables before there is a strategy. Set for this process, before the "
            f"Trainer is made:\n{' '.join(f'{name}={theirs}' for name, (theirs, _) in said.items())} and "
            "LOCAL_WORLD_SIZE, the ranks of its machine; or start the ranks with torchrun.",
            rank=(cluster.rank, cluster.world_size),
        )
