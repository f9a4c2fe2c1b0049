"""Run several ranks on this machine to their end."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from drivetrain.base.errors import LaunchError, RankFailedError
from drivetrain.launch.failure_file import FailureFile
from drivetrain.launch.local_agent import LocalAgent, RankFiles
from drivetrain.launch.local_rendezvous import BACKEND, register_local_rendezvous
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.rank_end import RankEnd, agreed_exit_code, make_rank_error
from drivetrain.launch.signal_gate import SignalGate
from drivetrain.launch.worker_env import count_cores, make_worker_env

_log = logging.getLogger("drivetrain.launch")
_NOISY = ("torch.distributed.elastic", "torch.multiprocessing")
_num_runs = itertools.count(1)


def run_ranks(
    entrypoint: str | Callable[..., None],
    args: tuple[Any, ...],
    *,
    num_ranks: int,
    directory: Path,
    start_method: str,
    max_restarts: int,
    grace_s: float,
    patience: Patience = DEFAULT_PATIENCE,
    failure_folder: Path | None = None,
) -> list[Path]:
    """Start ranks with torch's elastic agent and wait until all have ended properly.

    SIGTERM, SIGINT, SIGUSR1, SIGHUP and SIGQUIT are passed on to the ranks while they run, once, if this is the main
    thread. Unless all ranks then come to a proper end, they act on this process as they would have without a launch. A
    second Ctrl-C kills the ranks.

    Args:
        entrypoint: A command, or with `start_method="fork"` a function.
        args: Its arguments.
        num_ranks: How many.
        directory: An empty directory for their files.
        start_method: `"spawn"` or `"fork"`.
        max_restarts: How often all ranks are started again after a failure.
        grace_s: What ranks get between a signal that is passed on and SIGKILL.
        patience: How long ranks may show nothing.
        failure_folder: Where a failure is written down, with what every rank has to say of it.

    Returns:
        For each rank the directory with its files.

    Raises:
        RankFailedError: A rank failed.
        LaunchError: A signal ended the ranks, and the handler found here let this process live on.
        SystemExit: Every rank called `sys.exit` with the same code.
    """
    register_local_rendezvous()
    run_id = f"drivetrain-{os.getpid()}-{next(_num_runs)}-{int(time.time())}"
    env = make_worker_env(os.environ, num_ranks=num_ranks, num_cores=count_cores())
    files = RankFiles(directory, env)
    handler = get_rendezvous_handler(
        RendezvousParameters(backend=BACKEND, endpoint="", run_id=run_id, min_nodes=1, max_nodes=1)
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=num_ranks,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=handler,
        max_restarts=max_restarts,
        monitor_interval=0.05,
    )
    gate = SignalGate()
    failures = FailureFile(failure_folder)

    def say_restart(error: RankFailedError, number: int) -> None:
        failures.add(error, agent.ends)
        _log.warning("%s\nAll ranks are started again (restart %d of %d).", error, number, max_restarts)

    agent = LocalAgent(
        spec, files, start_method=start_method, grace_s=grace_s, gate=gate, on_restart=say_restart, patience=patience
    )
    received: signal.Signals | None = None
    try:
        with _quiet_elastic(), gate:
            agent.run()
    except SignalException as stop:
        received = stop.sigval
    finally:
        handler.shutdown()
    received = received or gate.received
    exit_code = agreed_exit_code(agent.ends) if len(agent.ends) == num_ranks else None
    if exit_code is not None:
        raise SystemExit(exit_code)
    if received is not None and not _have_finished(agent.ends, num_ranks):
        _act_on(received, num_ranks)
    elif any(end.is_failure for end in agent.ends):
        error = make_rank_error(agent.ends, num_ranks=num_ranks, num_restarts=agent.num_restarts)
        failures.add(error, agent.ends)
        raise error from None
    return [files.rank_directory(rank) for rank in range(num_ranks)]


def _have_finished(ends: Sequence[RankEnd], num_ranks: int) -> bool:
    return len(ends) == num_ranks and not any(end.is_failure for end in ends)


def _act_on(received: signal.Signals, num_ranks: int) -> None:
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    signal.raise_signal(received)
    raise LaunchError(
        f"{received.name} ended {num_ranks} ranks before they had finished.",
        code="launch-stopped",
        do="Start the run again; it goes on from its last checkpoint.",
    )


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Keep torch's agent from writing over a rank's traceback, unless its log was asked for (TORCH_LOGS, LOGLEVEL)."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_NOISY)]
    loggers = [logging.getLogger(name) for name in names]
    quiet = [logger for logger in loggers if logger.getEffectiveLevel() >= logging.WARNING]
    quiet.append(logging.getLogger("torchelastic-events-null"))  # events for nobody, at level INFO
    for logger in quiet:
        logger.addFilter(_drop)
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork while threads live; the ranks' own threads are torch's, and single.
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            yield
    finally:
        for logger in quiet:
            logger.removeFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False
