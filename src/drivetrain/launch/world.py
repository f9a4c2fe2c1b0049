"""Does a request for ranks fit what this process is?"""

from __future__ import annotations

from drivetrain.base.errors import ConfigError, LaunchError
from drivetrain.cluster.cluster_info import ClusterInfo


def check_world(cluster: ClusterInfo, requested: int) -> None:
    """Compare the ranks that were asked for with those that a launcher started.

    Args:
        cluster: Who this process is.
        requested: Ranks that were asked for, on all machines together.

    Raises:
        LaunchError: A launcher started another number of ranks.
    """
    if not cluster.is_launched or requested == cluster.world_size:
        return
    raise LaunchError(
        f"{requested} ranks were asked for, but {cluster.launched_by} started {cluster.world_size}.",
        code="world-size",
        do=f"Ask for {cluster.world_size} (devices x num_nodes), or start {requested} ranks.",
        rank=(cluster.rank, cluster.world_size),
    )


def check_may_launch(cluster: ClusterInfo, num_ranks: int) -> None:
    """Refuse to start ranks from inside a rank.

    Raises:
        LaunchError: This process is a rank already.
        ConfigError: Fewer than one rank was asked for.
    """
    if num_ranks < 1:
        raise ConfigError(f"num_ranks={num_ranks} starts nothing.", code="num-ranks", do="Ask for 1 or more.")
    if cluster.is_launched:
        raise LaunchError(
            f"This process is one of {cluster.world_size} ranks that {cluster.launched_by} started; it was asked to "
            f"start {num_ranks} more.",
            code="launched-twice",
            do="Launch once, from the process that is not a rank. Under torchrun nothing has to be launched.",
            rank=(cluster.rank, cluster.world_size),
        )
