"""The process that hosts the store is gone: what the others say of it."""

from __future__ import annotations

import socket
import time

from drivetrain.base.errors import ProcessGroupError
from drivetrain.cluster.cluster_info import ClusterInfo

_CONNECT_S = 2.0
_WAITS_S = (0.0, 0.1, 0.4)


def note_lost_store(error: BaseException, cluster: ClusterInfo) -> None:
    """Let an error that ends this rank say so, if the store through which the ranks met does not answer any more.

    Ranks: any.

    Args:
        error: What a survivor raises is a broken connection to some rank, or comes from a signal of its launcher.
        cluster: This rank among the others. Ranks whose launcher is drivetrain are told by that.
    """
    if cluster.launched_by in ("none", "drivetrain") or cluster.world_size < 2:
        return
    address = (cluster.main_address, cluster.main_port)
    try:
        # A process that is killed loses its connections one after the other: its port may answer for a moment.
        for wait_s in _WAITS_S:
            time.sleep(wait_s)
            socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError as cause:
        lost = ProcessGroupError(
            f"the store at {address[0]}:{address[1]}, through which the ranks had met, does not answer ({cause}): the "
            "process that hosted it has ended or is cut off, and the error above may only follow from that.",
            code="store-lost",
            do="Look for the first error of that process: rank 0, or the agent of torchrun on the first machine. Then "
            "start all ranks again; with resume='auto' they go on from the newest checkpoint.",
            rank=(cluster.rank, cluster.world_size),
        )
        error.add_note(f"drivetrain.{type(lost).__name__}: {lost}")
