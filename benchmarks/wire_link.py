"""A link of a known rate: loopback in a network namespace of its own, and the bytes that the kernel counted on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

OPEN = "none"  # a rate: unlimited
_BURST = "512kb"  # as much may pass at once; smaller ones hold a gigabit back
_LATENCY = "400ms"  # longest wait in the queue before a packet is dropped: never reached by a full socket buffer


def why_impossible(rate: str) -> str | None:
    """What is missing for a link of this rate here, in one sentence; `None` if nothing is."""
    if os.name != "posix" or not hasattr(os, "geteuid") or shutil.which("unshare") is None:
        return "wire needs Linux with util-linux (`unshare`)."
    tools = ["ip"] if rate == OPEN else ["ip", "tc"]
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"wire needs iproute2: {', '.join(missing)} not found (Debian: apt install iproute2)."
    if os.geteuid() != 0:
        return "wire needs root: a network namespace of its own and a limit on its loopback."
    tried = subprocess.run(on_link(rate, ["true"]), capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"wire cannot make its link here: {tried.stderr.strip()}"


def on_link(rate: str, command: Sequence[str]) -> list[str]:
    """A command line that runs another one in a new namespace whose loopback has a rate; it is gone afterwards.

    Args:
        rate: As `tc` reads it ("1gbit", "100mbit"), or "none".
        command: What to run there.
    """
    script = ["ip link set lo up"]
    if rate != OPEN:
        script.append(f'tc qdisc add dev lo root tbf rate "$1" burst {_BURST} latency {_LATENCY}')
    script.append('shift; exec "$@"')
    return ["unshare", "--net", "sh", "-c", " && ".join(script), "sh", rate, *command]


def link_bytes() -> int:
    """Bytes sent over loopback so far, by all processes of this one's namespace."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        device, colon, counters = line.partition(":")
        if colon and device.strip() == "lo":
            return int(counters.split()[8])
    raise RuntimeError("/proc/net/dev does not name lo.")
