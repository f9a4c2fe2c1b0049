"""Read from an environment who this process is among the ranks. Each reader is a pure function of a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping

from drivetrain.base.errors import ConfigError
from drivetrain.cluster.cluster_info import ClusterInfo

LAUNCHER_PID = "DRIVETRAIN_LAUNCHER_PID"
"""Set in ranks that drivetrain started: the process id of their launcher."""
LAST_FAILURE = "DRIVETRAIN_LAST_FAILURE"
"""Set in ranks that drivetrain has started again: why."""

_RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_RANK_SIGNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def current_cluster() -> ClusterInfo:
    """Who this process is, from its own environment.

    Raises:
        ConfigError: The environment says it only half.
    """
    return read_cluster(os.environ)


def read_cluster(env: Mapping[str, str]) -> ClusterInfo:
    """Who a process with this environment is: the first reader that knows its variables answers.

    torchelastic (torchrun, and drivetrain's own launcher), then variables set by hand, then one process alone.

    Raises:
        ConfigError: The environment says it only half.
    """
    return read_torchelastic(env) or read_environment(env) or read_single(env)


def read_single(env: Mapping[str, str]) -> ClusterInfo:
    """One process alone."""
    return ClusterInfo(rank=0, world_size=1, local_rank=0, local_world_size=1)


def read_torchelastic(env: Mapping[str, str]) -> ClusterInfo | None:
    """A worker of torch's elastic agent; `None` if the environment is not of one.

    Raises:
        ConfigError: `TORCHELASTIC_RUN_ID` is there, and something that belongs to it is not.
    """
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    launched_by = "drivetrain" if LAUNCHER_PID in env else "torchelastic"
    return _read(env, launched_by, (*_RANK_NAMES, "LOCAL_WORLD_SIZE"), sign="TORCHELASTIC_RUN_ID")


def read_environment(env: Mapping[str, str]) -> ClusterInfo | None:
    """Ranks that were told who they are by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    `None` if none of the first three is set: an address alone makes no rank.

    Raises:
        ConfigError: Some of them are set, others are not.
    """
    signs = [name for name in _RANK_SIGNS if name in env]
    if not signs:
        return None
    names: tuple[str, ...] = _RANK_NAMES
    if env.get("RANK") != env.get("LOCAL_RANK") and "RANK" in env and "LOCAL_RANK" in env:
        names = (*names, "LOCAL_WORLD_SIZE")  # more than one machine: it cannot be told from the other numbers
    return _read(env, "environment", names, sign=signs[0])


def _read(env: Mapping[str, str], launched_by: str, names: tuple[str, ...], *, sign: str) -> ClusterInfo:
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise ConfigError(
            f"{sign}={env[sign]!r} is set, so this process is one rank of a run, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not.",
            code="cluster-environment",
            do=f"Set {', '.join(names)} for each rank, or start with torchrun; to run one process, unset {sign}.",
        )
    rank, world_size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK")
    local_world_size = _number(env, "LOCAL_WORLD_SIZE", default=world_size)
    _check_below(("RANK", rank), ("WORLD_SIZE", world_size))
    _check_below(("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", local_world_size))
    _check_below(("LOCAL_WORLD_SIZE", local_world_size), ("WORLD_SIZE + 1", world_size + 1))
    return ClusterInfo(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=_number(env, "GROUP_RANK", default=rank // local_world_size),
        num_nodes=_number(env, "GROUP_WORLD_SIZE", default=-(-world_size // local_world_size)),
        launched_by=launched_by,
        run_id=env.get("TORCHELASTIC_RUN_ID", ""),
        restart_count=_number(env, "TORCHELASTIC_RESTART_COUNT", default=0),
        max_restarts=_number(env, "TORCHELASTIC_MAX_RESTARTS", default=0),
        last_failure=env.get(LAST_FAILURE, ""),
        main_address=env["MASTER_ADDR"],
        main_port=_number(env, "MASTER_PORT"),
    )


def _number(env: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = env.get(name)
    if not text and default is not None:
        return default
    try:
        number = int(str(text))
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigError(
            f"{name}={text!r} is not a whole number from 0.",
            code="cluster-environment",
            do=f"Set {name} to a number, or start the ranks with torchrun.",
        )
    return number


def _check_below(small: tuple[str, int], large: tuple[str, int]) -> None:
    if small[1] >= large[1]:
        raise ConfigError(
            f"{small[0]}={small[1]} is not below {large[0]}={large[1]}.",
            code="cluster-environment",
            do="Ranks are counted from 0. Set the numbers to fit, or start the ranks with torchrun.",
        )
