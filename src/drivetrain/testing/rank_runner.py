"""Ranks that live as long as a test session, so that a test of two ranks costs milliseconds and not seconds."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from drivetrain.launch.local_rendezvous import loopback_store
from drivetrain.launch.payload import dump_payload
from drivetrain.launch.worker_env import current_env, make_worker_env
from drivetrain.testing import rank_worker

START_TIMEOUT_S = 120.0
_CONSEQUENCE_S = 5.0
_STACKS_S = 1.0


class RankCallError(Exception):
    """A call failed on one rank or more.

    Attributes:
        errors: By rank: the exception, or `None` if it cannot be sent.
        texts: By rank: the traceback, or the stacks of a rank that did not come to an end.
    """

    def __init__(self, what: str, *, errors: dict[int, BaseException | None], texts: dict[int, str]) -> None:
        parts = [f"---- rank {rank} ----\n{text.rstrip()}" for rank, text in sorted(texts.items())]
        super().__init__("\n".join([what, *parts]))
        self.errors = dict(sorted(errors.items()))
        self.texts = dict(sorted(texts.items()))


class RankRunner:
    """Processes that run functions as ranks of a gloo world, one call after another.

    Each call has a store of its own and is told who it is by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, for the time of the call. A process group that it leaves behind is destroyed.

        with RankRunner(2) as runner:
            results = runner.run(train, config, world=2)

    Args:
        num_ranks: The most ranks that a call can have.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._directory = tempfile.TemporaryDirectory(prefix="drivetrain-ranks-")
        self._workers: list[_Worker] = []
        self._used_ports: set[int] = set()
        self._num_calls = itertools.count()

    def __enter__(self) -> RankRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes that live now."""
        return [worker.process.pid for worker in self._workers]

    def start(self) -> None:
        """Start what does not live, and wait until it is ready. `run` does it too."""
        missing = range(len(self._workers), self.num_ranks)
        self._workers.extend(_Worker(Path(self._directory.name), number, self.num_ranks) for number in missing)
        for worker in self._workers:
            worker.wait_ready()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._directory.cleanup()

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60, world: int = 2) -> list[Any]:
        """Call a function on ranks `0..world - 1`.

        The function's module is sent along, so that it need not be importable there.

        Ranks: none; the calling process is not a rank.

        Args:
            function: Called as `function(*args)`.
            args: Sent by cloudpickle.
            timeout_s: After that, every rank's stacks are raised and the processes are replaced.
            world: The number of ranks.

        Returns:
            What the function returned, by rank.

        Raises:
            RankCallError: A rank raised, died or did not come to an end.
        """
        if not 1 <= world <= self.num_ranks:
            raise ValueError(f"world={world} is not between 1 and num_ranks={self.num_ranks}")
        with _by_value(function):
            payload = dump_payload((function, args))
        self.start()
        store = loopback_store()
        while store.port in self._used_ports:  # a rank may keep a client of an earlier call's store by its address
            store = loopback_store()
        self._used_ports.add(store.port)
        for rank in range(world):
            call = {"payload": payload, "path": sys.path, "env": _rank_env(rank, world, store.host, store.port)}
            self._workers[rank].calls.send_bytes(pickle.dumps(call))
        try:
            return self._collect(world, timeout_s)
        except RankCallError:
            raise
        except BaseException:
            self._replace()  # whoever interrupts a call must not leave its answers to the next one
            raise

    def _collect(self, world: int, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        waiting = dict(enumerate(self._workers[:world]))
        results: dict[int, Any] = {}
        errors: dict[int, BaseException | None] = {}
        texts: dict[int, str] = {}
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            ready = connection.wait([worker.answers for worker in waiting.values()], timeout=left_s)
            for rank in [rank for rank, worker in waiting.items() if worker.answers in ready]:
                worker = waiting.pop(rank)
                try:
                    kind, value = pickle.loads(worker.answers.recv_bytes())
                except EOFError:
                    errors[rank], texts[rank] = None, f"died with exit code {worker.process.wait()}\n{worker.stacks()}"
                else:
                    if kind == "returned":
                        results[rank] = value
                    else:
                        errors[rank], texts[rank] = value
            if texts:
                deadline = min(deadline, time.monotonic() + _CONSEQUENCE_S)
        what = f"{len(texts)} of {world} ranks failed"
        if waiting:
            texts.update(_dump_stacks(waiting))
            what += f"; {len(waiting)} did not come to an end"
        if any(worker.process.poll() is not None for worker in self._workers[:world]) or waiting:
            self._replace()
        if texts:
            raise RankCallError(what, errors=errors, texts=texts)
        return [results[rank] for rank in range(world)]

    def _replace(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self, directory: Path, number: int, num_ranks: int) -> None:
        descriptor, self._stacks = tempfile.mkstemp(prefix=f"rank_{number}_", dir=directory)
        os.close(descriptor)
        call_reader, call_writer = os.pipe()
        answer_reader, answer_writer = os.pipe()
        options = {
            "path": sys.path,
            "launcher_pid": os.getpid(),
            "stacks": self._stacks,
            "calls": call_reader,
            "answers": answer_writer,
        }
        env = {name: value for name, value in current_env().items() if name != "OMP_NUM_THREADS"}
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self.process = subprocess.Popen(
            [sys.executable, *flags, rank_worker.__file__, json.dumps(options)],
            env=env | make_worker_env(env, num_ranks=num_ranks, num_cores=1),
            pass_fds=(call_reader, answer_writer),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(call_reader)
        os.close(answer_writer)
        self.calls = Connection(call_writer, readable=False)
        self.answers = Connection(answer_reader, writable=False)
        self._is_ready = False

    def wait_ready(self) -> None:
        if self._is_ready:
            return
        if not self.answers.poll(START_TIMEOUT_S):
            self.kill()
            raise RankCallError("a rank did not start", errors={}, texts={})
        assert self.answers.recv_bytes() == b"ready"
        self._is_ready = True

    def stacks(self) -> str:
        return Path(self._stacks).read_text(encoding="utf-8")

    def close(self) -> None:
        self.calls.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_STACKS_S)
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.calls.close()
        self.answers.close()


def _dump_stacks(waiting: dict[int, _Worker]) -> dict[int, str]:
    for worker in waiting.values():
        worker.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + _STACKS_S
    while time.monotonic() < deadline and not all(worker.stacks() for worker in waiting.values()):
        time.sleep(0.02)
    time.sleep(0.1)
    return {rank: f"did not come to an end:\n{worker.stacks()}" for rank, worker in waiting.items()}


def _rank_env(rank: int, world: int, host: str, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the runner serves the store: no rank does
    }


def _is_local(module: types.ModuleType) -> bool:
    """A test's own module, which a rank may not be able to import."""
    first = module.__name__.partition(".")[0]
    if first in sys.stdlib_module_names or first in ("__main__", "drivetrain"):
        return False
    return "site-packages" not in (getattr(module, "__file__", None) or "site-packages")


@contextmanager
def _by_value(function: Callable[..., Any]) -> Iterator[None]:
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not _is_local(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
