"""Where two sets of named tensors differ, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """A tensor that is not the same on both sides.

    Attributes:
        name: Of the tensor.
        kind: `"missing left"`, `"missing right"`, `"shape"`, `"dtype"` or `"values"`.
        detail: In words.
        max_abs: The greatest difference of two numbers; nan where a number is nan on one side alone. `None` where
            shapes differ or one side is missing.
    """

    name: str
    kind: str
    detail: str
    max_abs: float | None = None


def compare_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[Difference]:
    """All differences, by name. Numbers that are nan on both sides are the same."""
    found = []
    for name in sorted({*left, *right}):
        if name not in right or name not in left:
            side = "right" if name in left else "left"
            found.append(Difference(name, f"missing {side}", f"only {'left' if name in left else 'right'}"))
        elif (difference := _compare(name, left[name], right[name])) is not None:
            found.append(difference)
    return found


def _compare(name: str, left: Tensor, right: Tensor) -> Difference | None:
    if left.shape != right.shape:
        return Difference(name, "shape", f"{tuple(left.shape)} and {tuple(right.shape)}")
    left, right = (one.to_dense() if one.layout != torch.strided else one for one in (left.detach(), right.detach()))
    wide = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
    wide_left, wide_right = left.to(wide), right.to(wide)
    is_same = left == right
    is_same |= wide_left.isnan() & wide_right.isnan()
    distance = (wide_left - wide_right).abs()[~is_same]
    max_abs = float(distance.max()) if distance.numel() else 0.0
    if left.dtype != right.dtype:
        return Difference(name, "dtype", f"{left.dtype} and {right.dtype}, differ by up to {max_abs:.3g}", max_abs)
    if not distance.numel():
        return None
    return Difference(name, "values", f"{distance.numel()} of {left.numel()} differ, by up to {max_abs:.3g}", max_abs)
