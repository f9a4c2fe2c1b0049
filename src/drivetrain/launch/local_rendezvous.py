"""Where ranks of one machine find each other: a store in the launching process, on loopback only."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "drivetrain-local"
STORE_TIMEOUT_S = 300.0


def loopback_store(*, timeout_s: float = STORE_TIMEOUT_S) -> TCPStore:
    """A store served by this process on a port of loopback that the system chose.

    The socket is bound and listens before the store gets it, so that no port is guessed and none can be taken in
    between. Its `host` and `port` are what a rank connects to.
    """
    host, listener = _listen()
    port = listener.getsockname()[1]
    # Checked with torch 2.13: the libuv server takes over a socket that already listens.
    return TCPStore(
        host,
        port,
        None,
        True,
        timedelta(seconds=timeout_s),
        False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )


def _listen() -> tuple[str, socket.socket]:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            listener.bind((host, 0))
            listener.listen(1024)
            return host, listener
        except OSError:
            listener.close()
    raise OSError("this machine has no loopback address, neither 127.0.0.1 nor ::1")


class LocalRendezvous(RendezvousHandler):
    """One machine, nobody to wait for.

    Each round has a store and a key space of its own, so that ranks that are started again read nothing that the
    former ones wrote (pytorch#135712). Ranks reach it through MASTER_ADDR and MASTER_PORT, so `env://` works in them.
    """

    def __init__(self, run_id: str, *, timeout_s: float = STORE_TIMEOUT_S) -> None:
        self._run_id = run_id
        self._timeout_s = timeout_s
        self._num_rounds = 0
        self._store: TCPStore | None = None
        self._is_closed = False

    def get_backend(self) -> str:
        """The name it is registered under."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks are clients of the launcher's store; none of them serves one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store for the next round."""
        store = loopback_store(timeout_s=self._timeout_s)
        self._store = store
        self._num_rounds += 1
        return RendezvousInfo(
            PrefixStore(f"{self._run_id}/round_{self._num_rounds}", store),
            0,
            1,
            RendezvousStoreInfo(store.host, store.port),
        )

    def is_closed(self) -> bool:
        """No further round is possible."""
        return self._is_closed

    def set_closed(self) -> None:
        """Allow no further round."""
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        """Nobody ever joins."""
        return 0

    def get_run_id(self) -> str:
        """The name of the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the store."""
        self._is_closed = True
        self._store = None
        return True


def register_local_rendezvous() -> None:
    """Make torch's launcher know `LocalRendezvous`. Harmless when it does already."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LocalRendezvous(parameters.run_id, timeout_s=float(parameters.get("timeout", STORE_TIMEOUT_S)))
