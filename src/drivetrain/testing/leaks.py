"""What a test leaves behind: processes, threads, sockets, environment variables, a process group."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from drivetrain.launch.worker_env import current_env


@dataclass(frozen=True)
class ProcessState:
    """What a process holds that outlives a function."""

    children: frozenset[int]
    threads: frozenset[threading.Thread]
    sockets: dict[str, str]
    env: dict[str, str]
    has_process_group: bool


def take_state() -> ProcessState:
    """What this process holds now."""
    return ProcessState(
        children=frozenset(find_children(os.getpid())),
        threads=frozenset(threading.enumerate()),
        sockets=find_sockets(os.getpid()),
        env=current_env(),
        has_process_group=dist.is_available() and dist.is_initialized(),
    )


def leaks(before: ProcessState, *, allowed_pids: Collection[int] = (), wait_s: float = 2.0) -> list[str]:
    """What this process holds beyond an earlier state, one line for each; empty if nothing.

    Args:
        before: The earlier state.
        allowed_pids: Children that may stay, e.g. those of a `RankRunner`.
        wait_s: What is about to end gets this long.
    """
    deadline = time.monotonic() + wait_s
    found = _compare(before, take_state(), allowed_pids)
    while found and time.monotonic() < deadline:
        time.sleep(0.02)
        found = _compare(before, take_state(), allowed_pids)
    return found


def _compare(before: ProcessState, now: ProcessState, allowed_pids: Collection[int]) -> list[str]:
    found = [f"process {pid}: {_command(pid)}" for pid in sorted(now.children - before.children - set(allowed_pids))]
    found += [f"thread {thread.name}" for thread in now.threads - before.threads if thread.is_alive()]
    found += [f"socket {now.sockets[inode]}" for inode in now.sockets.keys() - before.sockets.keys()]
    for name in sorted(now.env.keys() | before.env.keys()):
        if now.env.get(name) != before.env.get(name) and name != "PYTEST_CURRENT_TEST":
            found.append(f"environment {name}: {before.env.get(name)!r} -> {now.env.get(name)!r}")
    if now.has_process_group and not before.has_process_group:
        found.append("the default process group")
    return found


def find_children(pid: int) -> list[int]:
    """Children of a process, defunct ones too, without theirs. Empty where there is no /proc."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(child) for child in path.read_text().split()]
        except OSError:
            continue
    return children


def find_descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    found = find_children(pid)
    for child in list(found):
        found += find_descendants(child)
    return found


def find_sockets(pid: int) -> dict[str, str]:
    """Sockets that a process holds in /proc/net/tcp and tcp6, by inode: `"127.0.0.1:80 LISTEN"` or `"... OPEN"`."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    sockets = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[9] in inodes:
                sockets[words[9]] = f"{_address(words[1])} {'LISTEN' if words[3] == '0A' else 'OPEN'}"
    return sockets


def _address(text: str) -> str:
    """An address of /proc/net/tcp: words of 4 bytes in the machine's order, then the port."""
    host, port = text.split(":")
    raw = b"".join(bytes.fromhex(host[index : index + 8])[::-1] for index in range(0, len(host), 8))
    if len(raw) == 4:
        return f"{'.'.join(str(part) for part in raw)}:{int(port, 16)}"
    return f"[{':'.join(raw[index : index + 2].hex() for index in range(0, 16, 2))}]:{int(port, 16)}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "(defunct)"
    except OSError:
        return "(gone)"
