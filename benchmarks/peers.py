"""Who is measured: hand-written PyTorch, drivetrain, and other libraries where they are installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One way to write the same training loop.

    Attributes:
        name: On the command line; also the function of the loops module that runs it.
        label: In the table.
        package: What has to be installed; `None` for hand-written PyTorch.
    """

    name: str
    label: str
    package: str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether it can be measured here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def choose_peers(peers: Sequence[Peer], names: str | None) -> tuple[list[Peer], list[Peer]]:
    """Peers to measure, and those that are left out because they are not installed.

    Args:
        peers: All that a benchmark knows; the first is what the others are compared with, and always stays.
        names: Comma-separated names; `None` for all.

    Raises:
        SystemExit: A name is unknown.
    """
    known = {peer.name: peer for peer in peers}
    chosen = list(known) if names is None else [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise SystemExit(f"--peers: {', '.join(unknown)} unknown. There are: {', '.join(known)}.")
    wanted = [peer for peer in peers if peer.name in chosen or peer is peers[0]]
    return [peer for peer in wanted if peer.is_installed], [peer for peer in wanted if not peer.is_installed]


def version_of(package: str) -> str:
    """The installed version of a package; "?" if it has none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "?"))
