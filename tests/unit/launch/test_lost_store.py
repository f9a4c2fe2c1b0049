"""What a rank says when the process is gone that hosted the store."""

from __future__ import annotations

import socket
from dataclasses import replace

from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.launch.lost_store import note_lost_store

CLUSTER = ClusterInfo(
    rank=1, world_size=2, local_rank=0, local_world_size=1, launched_by="environment", main_address="127.0.0.1"
)


def notes(cluster: ClusterInfo) -> list[str]:
    """What is added to an error."""
    error = RuntimeError("Connection closed by peer")
    note_lost_store(error, cluster)
    return getattr(error, "__notes__", [])


def test_a_store_that_is_gone_is_named() -> None:
    """Without it a survivor says that some connection was closed, and nobody knows where to look."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (note,) = notes(replace(CLUSTER, main_port=port))
    assert note.startswith(f"drivetrain.ProcessGroupError: [store-lost] [rank 1/2] the store at 127.0.0.1:{port}")


def test_nothing_is_said_of_a_store_that_answers() -> None:
    """An error of a user's own would be blamed on the store."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert notes(replace(CLUSTER, main_port=server.getsockname()[1])) == []


def test_a_launcher_of_ours_tells_it_itself() -> None:
    """Its ranks would guess at what the launcher knows."""
    assert notes(replace(CLUSTER, launched_by="drivetrain", main_port=1)) == []
