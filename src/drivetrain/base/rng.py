"""Random state: seeding it, keeping it, borrowing it."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from drivetrain.base.errors import ConfigError

_MAX_SEED = 2**32 - 1


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python, NumPy (where it is loaded or installed) and torch, on all devices.

    Loaders that drivetrain shards take their order from this seed, on every rank the same.

    Args:
        seed: 0 to 2**32 - 1. `None` draws one.
        workers: Accepted for familiarity; workers of a sharded loader are always seeded from the run's seed.
        verbose: Print the seed.

    Returns:
        The seed in use.

    Raises:
        ConfigError: The seed is outside its range.
    """
    if seed is None:
        seed = random.SystemRandom().randint(0, _MAX_SEED)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
        raise ConfigError(
            f"seed={seed!r} is not a whole number from 0 to {_MAX_SEED}.", code="seed", do="Use such a number, or None."
        )
    if verbose:
        print(f"seed {seed}", file=sys.stderr)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


def mix_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers: stable over processes, machines and Python versions.

    The first 63 bits of SHA-256 over the decimal numbers.
    """
    digest = hashlib.sha256(",".join(map(str, map(int, parts))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def capture_rng() -> dict[str, Any]:
    """The random state of this process as tensors and plain data: Python, NumPy if loaded, torch on all devices."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(internal), gauss], "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what `capture_rng` gave; parts that the state lacks stay as they are."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        numpy = _numpy()
        if numpy is not None:
            name, keys, position, has_gauss, cached = state["numpy"]
            numpy.random.set_state((name, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        for index, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, index)


@contextmanager
def forked_rng(seed: int) -> Iterator[None]:
    """Seed the random state of this process for a block, and put back what was there before."""
    before = capture_rng()
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (_MAX_SEED + 1))
    try:
        yield
    finally:
        restore_rng(before)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
