"""The store that ranks of one machine meet at."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from drivetrain.launch.local_rendezvous import BACKEND, LocalRendezvous, loopback_store, register_local_rendezvous
from drivetrain.testing.leaks import find_sockets


def test_the_store_listens_on_loopback_only() -> None:
    """The launcher would be open to the network."""
    before = find_sockets(os.getpid())
    store = loopback_store()
    new = {text for inode, text in find_sockets(os.getpid()).items() if inode not in before}
    assert [text for text in new if "LISTEN" in text] == [f"127.0.0.1:{store.port} LISTEN"]


def test_a_client_reads_what_the_store_holds() -> None:
    """Ranks could not find each other."""
    store = loopback_store()
    store.set("key", "value")
    client = dist.TCPStore(store.host, store.port, None, False, timedelta(seconds=10))
    assert client.get("key") == b"value"


def test_each_round_has_a_key_space_of_its_own() -> None:
    """Ranks that are started again would read what the failed ones wrote."""
    rendezvous = LocalRendezvous("run")
    first = rendezvous.next_rendezvous()
    first.store.set("key", "old")
    second = rendezvous.next_rendezvous()
    assert not second.store.check(["key"])
    assert (second.rank, second.world_size, second.bootstrap_store_info.master_addr) == (0, 1, "127.0.0.1")
    assert rendezvous.shutdown() and rendezvous.is_closed()


def test_torch_makes_it_by_name_and_registering_twice_is_harmless() -> None:
    """The second launch of a process would fail."""
    register_local_rendezvous()
    register_local_rendezvous()
    handler = get_rendezvous_handler(RendezvousParameters(BACKEND, "", "run", 1, 1, timeout=5))
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == (BACKEND, "run", True)
    assert handler.num_nodes_waiting() == 0
    handler.set_closed()
    assert handler.is_closed()
