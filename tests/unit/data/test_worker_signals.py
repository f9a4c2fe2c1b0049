"""Signals that a scheduler sends to the workers of a loader, too."""

from __future__ import annotations

import os
import signal
import time

from torch.utils.data import DataLoader

from drivetrain.data.data_shard import DataShard
from drivetrain.data.shard_loader import shard_loader
from drivetrain.testing.fixtures import make_dataset


def test_workers_outlive_the_signals_that_tell_their_rank_to_end() -> None:
    """The step that a rank still finishes would lack its batches: `DataLoader worker is killed by signal`."""
    loader = shard_loader(DataLoader(make_dataset(40), batch_size=4, num_workers=1), DataShard(0, 1), seed=0)
    batches = iter(loader)
    next(batches)
    (worker,) = batches._workers  # type: ignore[attr-defined]
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        # By another process, as a scheduler would.
        os.waitpid(os.spawnlp(os.P_NOWAIT, "kill", "kill", f"-{sig.value}", str(worker.pid)), 0)
    time.sleep(0.1)
    assert len(list(batches)) == 9
    del batches


def test_a_rank_can_end_its_workers() -> None:
    """A worker that hangs would keep its rank alive for ever."""
    loader = shard_loader(DataLoader(make_dataset(400), batch_size=4, num_workers=1), DataShard(0, 1), seed=0)
    batches = iter(loader)
    next(batches)
    (worker,) = batches._workers  # type: ignore[attr-defined]
    worker.terminate()
    worker.join(5)
    assert worker.exitcode == 0
    batches._workers_status[0] = False  # type: ignore[attr-defined]
