"""Do all ranks hold the same values?"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.base.errors import ModelError
from drivetrain.comm.collectives import Collectives

ROW = 1 << 16  # elements that are multiplied with different numbers
BLOCK = ROW << 5  # elements hashed at once: 16 MiB beside the tensor
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_same_values(
    module: nn.Module, collectives: Collectives, *, buffers: bool = False, step: int | None = None
) -> int:
    """Compare the values of parameters over ranks, bit for bit, by a hash of 8 bytes for each.

    The hashes are made on the device and read back once. What a rank holds a shard of is left out: the others hold
    something else by design.

    Ranks: all (one small message; where they differ a second one with the hashes).

    Args:
        module: Of the same layout on all ranks.
        collectives: Between the ranks.
        buffers: Compare buffers too.
        step: Named in the error.

    Returns:
        How many parameters and buffers were compared; 0 on one rank.

    Raises:
        ModelError: On every rank alike, naming the first that differs and the ranks.
    """
    if collectives.world_size == 1:
        return 0
    hashes = _hashes(module, buffers)
    # Two numbers that float64 holds exactly; their greatest and least are equal where all are.
    digest = hashlib.sha256(repr(hashes).encode()).digest()
    first, second = float(int.from_bytes(digest[:6], "big")), float(int.from_bytes(digest[6:12], "big"))
    greatest = collectives.agree([first, second, -first, -second], "max")
    if greatest[:2] == [-greatest[2], -greatest[3]]:
        return len(hashes)
    by_rank = collectives.gather_objects(hashes)
    known = list(dict.fromkeys(name for one in by_rank for name in one))
    names = [name for name in known if len({one.get(name) for one in by_rank}) > 1]
    ranks = [rank for rank, one in enumerate(by_rank) if one.get(names[0]) != by_rank[0].get(names[0])]
    raise ModelError(
        f"{'' if step is None else f'After step {step}: '}{names[0]!r} has another value on rank"
        f"{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} than on rank 0"
        f"{f' ({len(names)} of {len(known)} differ)' if len(names) > 1 else ''}.",
        code="ranks-differ",
        do="All ranks have to hold the same values. Look for a backward or an update that only some ranks made, for a "
        "method\ncalled beside the wrapper, for values that depend on the rank. Go on from a checkpoint before that.",
        rank=(collectives.rank, collectives.world_size),
    )


def fingerprint(tensor: Tensor) -> Tensor:
    """A hash of a tensor's bits and where they are, 0-dim int64 on its device; the same on every kind of device.

    Each element, read as an integer, is multiplied with an odd number that depends on its place, and all are added
    modulo 2**64: in whatever order a device adds them, the sum is the same.
    """
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    sums = _sums(flat.view(_INTEGER_OF_SIZE[flat.element_size()]))
    while len(sums) > 1:
        sums = _sums(_mixed(sums))
    return sums[0]


def _sums(bits: Tensor) -> Tensor:
    """The sum of each row of `ROW` elements, and of what is left."""
    factors, whole = _factors(bits.device), len(bits) // ROW * ROW
    rows = [(block.view(-1, ROW) * factors).sum(1) for block in bits[:whole].split(BLOCK)] if whole else []
    if whole < len(bits) or not rows:
        rows.append((bits[whole:] * factors[: len(bits) - whole]).sum().view(1))
    return torch.cat(rows)


@functools.lru_cache(maxsize=8)
def _factors(device: torch.device) -> Tensor:
    """An odd number for each place in a row."""
    return _mixed(torch.arange(1, ROW + 1, device=device) * -7046029254386353131) | 1


def _mixed(numbers: Tensor) -> Tensor:
    """Spread each bit over all 64: the end of splitmix64 (Steele et al., 2014), in signed numbers."""
    numbers = (numbers ^ (numbers >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    numbers = (numbers ^ (numbers >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    return numbers ^ (numbers >> 31 & 0x1FFFFFFFF)


def _hashes(module: nn.Module, buffers: bool) -> dict[str, int]:
    """Name to hash of what every rank should hold alike, read back at once."""
    named: list[tuple[str, Any]] = [*module.named_parameters(), *(module.named_buffers() if buffers else ())]
    found: dict[str, Tensor] = {}
    for name, tensor in named:
        placements = getattr(tensor, "placements", None)  # of a DTensor
        if placements is None:
            found[name] = fingerprint(tensor)
        elif all(placement.is_replicate() for placement in placements):
            found[name] = fingerprint(tensor.to_local())
    if not found:
        return {}
    device = next(iter(found.values())).device
    return dict(zip(found, torch.stack([one.to(device) for one in found.values()]).tolist(), strict=True))
