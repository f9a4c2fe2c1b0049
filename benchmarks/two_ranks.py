"""Two ranks on this machine, started by torch's launcher, that talk over loopback only."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

NUM_RANKS = 2


def launch_command(module: str, arguments: Sequence[str], *, port: int) -> list[str]:
    """The command line that runs a module on both ranks.

    Args:
        module: Run with `-m`.
        arguments: Of the module.
        port: Where the ranks meet, on 127.0.0.1.
    """
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(NUM_RANKS),
        "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", module, *arguments,
    ]  # fmt: skip


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
