"""Who a process is among the ranks of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterInfo:
    """One rank among the others.

    Attributes:
        rank: Number of this process in the run, from 0.
        world_size: Number of ranks in the run.
        local_rank: Number of this process on its machine, from 0; chooses the device.
        local_world_size: Number of ranks on this machine.
        node_rank: Number of this machine in the run, from 0.
        num_nodes: Number of machines.
        launched_by: What started the ranks: `"none"` for one process without a launcher, `"drivetrain"`,
            `"torchelastic"` (torchrun), `"environment"` (variables set by hand or by a scheduler).
        run_id: The launcher's name for the run; equal on all ranks.
        restart_count: How often the ranks of this run were started again after a failure.
        max_restarts: How often that may be.
        last_failure: After what, as far as the launcher says it: `"rank 1 of 2 was killed by SIGKILL"`.
        main_address: Where the ranks find each other; empty for one process.
        main_port: The port there; 0 for one process.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    launched_by: str = "none"
    run_id: str = ""
    restart_count: int = 0
    max_restarts: int = 0
    last_failure: str = ""
    main_address: str = ""
    main_port: int = 0

    @property
    def is_launched(self) -> bool:
        """A launcher started this process as one rank of a run, possibly of one."""
        return self.launched_by != "none"
