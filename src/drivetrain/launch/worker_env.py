"""The environment of ranks that share this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from drivetrain.cluster.read_cluster import LAUNCHER_PID

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def make_worker_env(env: Mapping[str, str], *, num_ranks: int, num_cores: int) -> dict[str, str]:
    """What ranks of one machine get beside torch's own variables: loopback for all engines, a share of the cores.

    What is set in `env` already is left as it is.
    """
    wanted = {
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        "TP_SOCKET_IFNAME": _LOOPBACK,
        "NCCL_SOCKET_IFNAME": _LOOPBACK,
        "OMP_NUM_THREADS": str(max(1, num_cores // num_ranks)),
    }
    return {name: value for name, value in wanted.items() if name not in env} | {LAUNCHER_PID: str(os.getpid())}


def current_env() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


@contextmanager
def env_for_a_while(env: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment; at the end it is as it was, whatever was set meanwhile."""
    found = current_env()
    os.environ.update(env)
    try:
        yield
    finally:
        for name in set(os.environ) - set(found):
            del os.environ[name]
        os.environ.update(found)


def count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
