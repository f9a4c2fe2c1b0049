"""Ranks that watch each other, where their launcher does not: under torchrun, Slurm and the like."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, distributed_c10d  # type: ignore[attr-defined]

from drivetrain.base.fence import FENCE
from drivetrain.cluster.cluster_info import ClusterInfo
from drivetrain.launch.failure_file import FailureFile
from drivetrain.launch.heart import Heart
from drivetrain.launch.patience import Patience
from drivetrain.launch.processes import Usage, is_stopped, own_usage, usage_of
from drivetrain.launch.rank_end import RankEnd, make_rank_error
from drivetrain.launch.rank_watch import RankWatch, Sight
from drivetrain.launch.stacks import SILENT, stacks_text, tidy
from drivetrain.launch.stall import Stall

BEAT_S = 1.0
_VERDICT = "verdict"
_SHOWN = "shown"
_STACKS_S = 2.0
_SHOWN_S = 6.0
_POLL_S = 0.05


class StoreWatch:
    """One rank's part of the watch over the group's store: a small write and two small reads a second.

    Each rank writes how far it is. Ranks 0 and 1 judge (1 because 0 may be the one that has stalled), and the first two
    ranks of each machine look for stopped processes there. A verdict ends every rank with exit code 1.

    Args:
        store: A connection of its own: the store of a group is locked while a rank waits in it.
        cluster: This rank among the others.
        patience: How long ranks may show nothing.
        failures: Where the first rank that has not stalled writes it down.
        end: Ends the process.
    """

    def __init__(
        self,
        store: Store,
        cluster: ClusterInfo,
        patience: Patience,
        failures: FailureFile,
        *,
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._failures = failures
        self._end = end
        self._num_beats = 0
        first = cluster.rank - cluster.local_rank
        self._neighbours = range(first, first + cluster.local_world_size)
        self._watched = range(0)
        if cluster.rank < 2:
            self._watched = range(cluster.world_size)
        elif cluster.local_rank < 2:
            self._watched = self._neighbours
        self._reports: dict[int, Any] = {}
        self._watch = RankWatch(patience, self._see, look_s=BEAT_S / 2)

    def is_condemned(self) -> bool:
        """The ranks of this round have been ended, or nobody can say."""
        try:
            return bool(self._store.check([_VERDICT]))
        except RuntimeError:
            return True

    def tell(self, report: dict[str, Any]) -> None:
        """Report, judge, and end if there is a verdict."""
        self._num_beats += 1
        own = report | {"beat": self._num_beats, "pid": os.getpid(), "usage": own_usage()}
        with contextlib.suppress(RuntimeError):  # the store is gone, and its host with it: the group will say so
            self._store.set(str(self._cluster.rank), json.dumps(own))
            if self._watched:
                self._judge()
            if self._store.check([_VERDICT]):
                self._leave([Stall(*each) for each in json.loads(self._store.get(_VERDICT))])

    def _judge(self) -> None:
        texts = self._store.multi_get([str(rank) for rank in self._watched])
        self._reports = {rank: json.loads(text) for rank, text in zip(self._watched, texts, strict=True)}
        stalls = self._watch.look(self._watched)
        if stalls:
            self._store.compare_set(_VERDICT, "", json.dumps([list(vars(stall).values()) for stall in stalls]))

    def _see(self, rank: int) -> Sight:
        report = self._reports[rank]
        is_here = rank in self._neighbours
        pid = report["pid"]

        def usage() -> Usage | None:
            return usage_of(pid) if is_here else Usage(*report["usage"]) if report["usage"] else None

        return Sight(report, is_here and is_stopped(pid), usage, report["beat"])

    def _leave(self, stalls: list[Stall]) -> None:
        """Leave the stacks for the first rank that has not stalled, which shows those of all; then end."""
        rank, stalled = self._cluster.rank, [stall.rank for stall in stalls]
        self._store.set(f"stacks/{rank}", _own_stacks())
        if rank == min((one for one in range(self._cluster.world_size) if one not in stalled), default=0):
            self._wait([f"stacks/{one}" for one in range(self._cluster.world_size)], _STACKS_S)
            self._show(stalls, stacks_text(self._stacks(), stalled))
            self._store.set(_SHOWN, "")
        else:  # a launcher ends all others as soon as one has ended
            self._wait([_SHOWN], _SHOWN_S)
        for one in stalled:
            if one != rank and one in self._neighbours and one in self._reports:
                with contextlib.suppress(OSError):
                    os.kill(self._reports[one]["pid"], signal.SIGKILL)  # SIGTERM does not reach one that is stopped
        self._end(1)

    def _wait(self, keys: list[str], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s and not self._store.check(keys):
            time.sleep(_POLL_S)

    def _stacks(self) -> dict[int, str]:
        stacks = {}
        for rank in range(self._cluster.world_size):
            is_there = self._store.check([f"stacks/{rank}"])
            stacks[rank] = self._store.get(f"stacks/{rank}").decode() if is_there else SILENT
        return stacks

    def _show(self, stalls: list[Stall], text: str) -> None:
        seen = time.time()
        ends = [RankEnd(one.rank, "stalled", seen - one.waited_s, 1, one.reason, text) for one in stalls]
        error = make_rank_error(ends, num_ranks=self._cluster.world_size)
        self._failures.add(error, ends)
        print(f"drivetrain.{type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _own_stacks() -> str:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return tidy(file.read())


_watches: list[Heart] = []  # of this process


def begin_store_watch(cluster: ClusterInfo, patience: Patience, folder: Path) -> None:
    """Let ranks watch each other over the store of their default group, if no launcher of ours watches them.

    Ranks: all, once they have met.

    Args:
        cluster: This rank among the others.
        patience: How long ranks may show nothing.
        folder: Where a failure is written down.
    """
    if cluster.launched_by in ("none", "drivetrain") or cluster.world_size < 2 or _watches or not dist.is_initialized():
        return
    store = PrefixStore("drivetrain/heart", distributed_c10d._get_default_store().clone())  # type: ignore[attr-defined]
    watch = StoreWatch(store, cluster, patience, FailureFile(folder))
    FENCE.follow(lambda: not watch.is_condemned())
    _watches.append(Heart(watch.tell, beat_s=BEAT_S))
    _watches[0].join(patience)


def end_store_watch() -> None:
    """Stop watching; the process that serves the store may leave now.

    Ranks: any.
    """
    while _watches:
        FENCE.follow(None)
        _watches.pop().stop()
