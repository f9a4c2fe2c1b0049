"""torch's elastic agent on one machine, with an eye on how ranks end."""

from __future__ import annotations

import functools
import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, ProcessFailure

from drivetrain.base.errors import RankFailedError
from drivetrain.cluster.read_cluster import LAST_FAILURE
from drivetrain.launch.forked_function import ForkedFunction
from drivetrain.launch.heart import HEART_NAME, ROUND_NAME, read_report
from drivetrain.launch.patience import DEFAULT_PATIENCE, Patience
from drivetrain.launch.processes import is_stopped, usage_of
from drivetrain.launch.rank_end import (
    ERROR_NAME,
    RankEnd,
    first_failure,
    how_it_ended,
    is_preemption,
    make_rank_error,
    may_start_again,
    read_rank_end,
)
from drivetrain.launch.rank_watch import RankWatch, Sight
from drivetrain.launch.signal_gate import SignalGate
from drivetrain.launch.stacks import read_stacks, stacks_text

FAILURE_GRACE_S = 3.0
_SETTLE_S = 0.5
_TORCH_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_TORCH_SIGNALS_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_POLL_S = 0.05


class RankFiles(LogsSpecs):
    """Where ranks leave their files, and what their environment gets beside torch's variables.

    Args:
        directory: Empty; each round makes a folder in it, and in that one for each rank.
        env: Added to the environment of each rank; what is put into it later reaches ranks that are started later.
    """

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        super().__init__(log_dir=str(directory))
        self.env = dict(env)
        self.round_directory = directory

    @property
    def root_log_dir(self) -> str:
        """The directory."""
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders of one round; called by torch before it starts ranks."""
        self.round_directory = Path(tempfile.mkdtemp(prefix="round_", dir=self.root_log_dir))
        (self.round_directory / ROUND_NAME).touch()
        error_files = {}
        for local_rank, env in envs.items():
            error_file = self.rank_directory(local_rank) / ERROR_NAME
            error_file.parent.mkdir()
            error_files[local_rank] = str(error_file)
            env.update(self.env, TORCHELASTIC_ERROR_FILE=str(error_file))
            env[_TORCH_SIGNALS] = _TORCH_SIGNALS_DEFAULT
        console = dict.fromkeys(envs, "")
        return LogsDest(stdouts=console, stderrs=dict(console), error_files=error_files)

    def end_round(self) -> None:
        """From now on no process of the round may give a checkpoint its name."""
        (self.round_directory / ROUND_NAME).unlink(missing_ok=True)

    def rank_directory(self, local_rank: int) -> Path:
        """Where a rank of the current round leaves its files."""
        return self.round_directory / str(local_rank)


class LocalAgent(LocalElasticAgent):
    """Starts, watches and ends the ranks of one machine.

    Beyond torch's agent: a rank that leaves with exit code 0 before its proper end has failed; the rank that failed
    first is known; survivors get seconds, not half a minute; what a failed rank started is ended with it.

    Args:
        spec: What to run.
        files: Where ranks leave their files.
        start_method: `"spawn"` for commands, `"fork"` for a function.
        grace_s: What ranks get between a signal to the launcher, which is passed on to them, and SIGKILL.
        gate: Entered by the caller for the time of the run.
        on_restart: Called with the failure before ranks are started again.
        patience: How long ranks may show nothing.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        files: RankFiles,
        *,
        start_method: str,
        grace_s: float,
        gate: SignalGate,
        on_restart: Callable[[RankFailedError, int], None],
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        super().__init__(spec, files, start_method=start_method)
        self._shutdown_timeout = grace_s  # type: ignore[assignment]
        self._files = files
        self._gate = gate
        self._is_forked = start_method == "fork"
        self._on_restart = on_restart
        self._patience = patience
        self.ends: list[RankEnd] = []
        self.num_restarts = 0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.ends = []
        self._watch = RankWatch(self._patience, self._see)
        spec = worker_group.spec
        start = spec.entrypoint
        are_held_back = start.held_back(spec.local_world_size) if isinstance(start, ForkedFunction) else nullcontext()
        with self._gate.held(), _torch_sets_no_handlers(), _garbage_left_alone(), are_held_back:
            pids: dict[int, Any] = super()._start_workers(worker_group)
        self._let_go()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ends = self._look()
        if not any(end.is_failure for end in ends):
            ends = self._look_for_stalls()
        if not any(end.is_failure for end in ends):
            if len(ends) < worker_group.spec.local_world_size:
                return RunResult(state=WorkerState.HEALTHY)
            result: RunResult = super()._monitor_workers(worker_group)
            return result
        self._settle()
        pids = self._pids()
        self._end_all(signal.SIGTERM, FAILURE_GRACE_S)
        self._files.end_round()
        self._prepare_restart(num_ranks=len(pids))
        failures = {
            end.rank: ProcessFailure(
                local_rank=end.rank,
                pid=pids[end.rank],
                exitcode=end.exit_code,
                error_file=str(self._files.rank_directory(end.rank) / ERROR_NAME),
            )
            for end in self.ends
            if end.is_failure
        }
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _prepare_restart(self, *, num_ranks: int) -> None:
        """Say that all ranks will be started again, and let them know why; or have none started."""
        if not may_start_again(self.ends, num_ranks=num_ranks):
            self._remaining_restarts = 0
        if self._remaining_restarts == 0:
            return
        self.num_restarts += 1
        self._on_restart(make_rank_error(self.ends, num_ranks=num_ranks), self.num_restarts)
        first = first_failure(self.ends)
        self._files.env[LAST_FAILURE] = f"rank {first.rank} of {num_ranks} {how_it_ended(first, is_brief=True)}"

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        self._end_all(death_sig, timeout)
        self._look()
        super()._shutdown(death_sig, int(timeout))

    def _settle(self) -> None:
        """Give a failing rank the time to leave by itself, and others the time to say that they failed earlier."""
        start, limit_s = time.monotonic(), FAILURE_GRACE_S
        while (waited_s := time.monotonic() - start) < limit_s:
            ends = self._look()
            failed = [end for end in ends if end.is_failure]
            # Where the state was saved, the others are on their way out as well.
            limit_s = max(FAILURE_GRACE_S, self._shutdown_timeout) if is_preemption(failed) else FAILURE_GRACE_S
            have_left = all(self._exit_code(end.rank) is not None for end in failed)
            # sys.exit on one rank is a failure unless every rank does the same: wait for them.
            is_awaited = all(end.kind == "exited" for end in failed) and len(ends) < len(self._pids())
            if have_left and not is_awaited and waited_s >= _SETTLE_S:
                break
            time.sleep(_POLL_S)

    def _look(self) -> list[RankEnd]:
        """The ends of those ranks that have ended; the time of each is that of the first look that saw it."""
        known = {end.rank for end in self.ends}
        for local_rank in self._pids():
            if local_rank in known:
                continue
            exit_code = self._exit_code(local_rank)
            directory = self._files.rank_directory(local_rank)
            end = read_rank_end(directory, local_rank, exit_code=exit_code, seen=time.time())
            if end is not None:
                self.ends.append(end)
        return self.ends

    def _look_for_stalls(self) -> list[RankEnd]:
        """Kill ranks that have stalled, once all have shown what they do."""
        living = {rank: pid for rank, pid in self._pids().items() if rank not in {end.rank for end in self.ends}}
        stalls = self._watch.look(living.keys())
        if stalls:
            text = stacks_text(read_stacks(living, self._files.rank_directory), [stall.rank for stall in stalls])
            for stall in stalls:
                seen = time.time() - stall.waited_s
                self.ends.append(RankEnd(stall.rank, "stalled", seen, -signal.SIGKILL, stall.reason, text))
                self._kill(stall.rank)
        return self.ends

    def _see(self, rank: int) -> Sight:
        pid = self._pids()[rank]
        report = read_report(self._files.rank_directory(rank) / HEART_NAME)
        return Sight(report, is_stopped(pid), functools.partial(usage_of, pid))

    def _pids(self) -> dict[int, int]:
        return self._pcontext.pids() if self._pcontext is not None else {}

    def _exit_code(self, local_rank: int) -> int | None:
        """The exit code of a rank, which is left for torch to reap; `None` while it lives."""
        try:
            status = os.waitid(os.P_PID, self._pids()[local_rank], os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0  # reaped: torch has seen the end
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def _end_all(self, death_sig: signal.Signals, grace_s: float) -> None:
        """Ask every rank to end, wait, and end those that did not, with everything that they started."""
        had_failure = any(end.is_failure for end in self.ends)
        living = [rank for rank in self._pids() if self._exit_code(rank) is None]
        try:
            for rank in living:
                os.kill(self._pids()[rank], death_sig)
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and any(self._exit_code(rank) is None for rank in living):
                time.sleep(_POLL_S)
        finally:
            for rank in self._pids() if had_failure else living:
                self._kill(rank)

    def _let_go(self) -> None:
        """A forked rank whose function has returned would wait until torch has read the value: it may leave at once.

        Now, before any waits: an event that a killed process has waited for can never be set.
        """
        finished = getattr(self._pcontext, "_worker_finished_event", None)
        if finished is not None:
            finished.set()

    def _kill(self, local_rank: int) -> None:
        pid = self._pids()[local_rank]
        try:
            if self._is_forked:
                if self._exit_code(local_rank) is None:
                    os.kill(pid, signal.SIGKILL)
            elif os.getpgid(pid) == pid:  # torch starts each command in a session of its own
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """What a fork inherits as garbage is not collected in it: a store of a former round would wait for its thread."""
    had_frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not had_frozen:
            gc.unfreeze()


@contextmanager
def _torch_sets_no_handlers() -> Iterator[None]:
    """torch reads the signals to handle from the environment when it starts ranks; the gate does it here."""
    found = os.environ.get(_TORCH_SIGNALS)
    os.environ[_TORCH_SIGNALS] = ""
    try:
        yield
    finally:
        if found is None:
            del os.environ[_TORCH_SIGNALS]
        else:
            os.environ[_TORCH_SIGNALS] = found
