"""Hidden names for what is half done; each tells who was doing it, so that leftovers of dead processes can be found.

    .<final>.<kind>-<host>-<pid>-<started>-<random>

`host` stands for one boot of one machine and one PID namespace, `started` for the start of the process in clock ticks.
Together with the PID they name a process without a doubt: a PID that was given again has another start.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["tmp", "old", "gone"]

_PATTERN = re.compile(r"\.(.+)\.(tmp|old|gone)-([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}", re.DOTALL)


@dataclass(frozen=True)
class TemporaryName:
    """What a hidden name says.

    Attributes:
        final: The name that it stands in for.
        kind: `tmp` is being written, `old` was moved aside for a new one, `gone` is being deleted.
        host: The boot and PID namespace of the process that made it.
        pid: That process, as counted there.
        started: Clock ticks between boot and the start of that process; 0 where the system does not tell.
    """

    final: str
    kind: Kind
    host: str
    pid: int
    started: int

    def is_writer_alive(self) -> bool | None:
        """Whether the process that made this name still runs; `None` if that was on another host or before a boot."""
        if self.host != _host():
            return None
        if not Path("/proc/self/stat").exists():
            return _is_pid_taken(self.pid)
        state, started = _process_state(self.pid)
        return state not in "ZX" and started == self.started


def temporary_sibling(path: Path, kind: Kind = "tmp") -> Path:
    """A unique hidden name beside `path` that carries this process; nothing is made on the disk."""
    pid = os.getpid()
    _, started = _process_state(pid)
    return path.with_name(f".{path.name}.{kind}-{_host()}-{pid}-{started}-{secrets.token_hex(4)}")


def parse_temporary(name: str) -> TemporaryName | None:
    """What a name made by `temporary_sibling` says; `None` for every other name."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    final, kind, host, pid, started = match.groups()
    return TemporaryName(final, kind, host, int(pid), int(started))  # type: ignore[arg-type]


@functools.cache
def _host() -> str:
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        identity = ""
    return hashlib.sha256(f"{socket.gethostname()} {identity}".encode()).hexdigest()[:8]


def _process_state(pid: int) -> tuple[str, int]:
    """The state letter and the start of a process; `("X", 0)` if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X", 0
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _is_pid_taken(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
