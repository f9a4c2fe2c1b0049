"""Where files are: a path of this machine, or the URL of a store."""

from __future__ import annotations

import re
from pathlib import Path

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(/?)(.*)", re.DOTALL)


def locate(place: str | Path) -> str:
    """An absolute path, or a URL such as `s3://bucket/runs` without a slash at its end.

    `file://` is a path, and a `Path` that was made of a URL, and so lost a slash, is that URL.
    """
    match = _URL.fullmatch(str(place)) if isinstance(place, Path) or "://" in place else None
    if match is None:
        return str(Path(place).expanduser().absolute())
    scheme, _, rest = match.groups()
    return f"/{rest.lstrip('/')}" if scheme == "file" else f"{scheme}://{rest.rstrip('/')}"


def is_url(location: str) -> bool:
    """It is in a store, and not on this machine; of what `locate` gave."""
    return "://" in location


def join(location: str, *names: str) -> str:
    """A location below another."""
    return "/".join([location, *names]) if is_url(location) else str(Path(location, *names))
