from __future__ import annotations

import math

import torch

from drivetrain.checkpoint.differences import Difference, compare_tensors


def one(left: torch.Tensor, right: torch.Tensor) -> Difference:
    (found,) = compare_tensors({"w": left}, {"w": right})
    return found


def test_equal_tensors_do_not_differ() -> None:
    """Two copies of a checkpoint that are said to differ."""
    state = {
        "a": torch.tensor([1.0, math.nan, math.inf, -math.inf]), "b": torch.arange(3), "c": torch.empty(0),
        "d": torch.tensor(True), "e": torch.tensor(1 + 2j),
    }  # fmt: skip
    assert compare_tensors(state, {name: value.clone() for name, value in state.items()}) == []


def test_the_greatest_difference_is_given() -> None:
    """A difference of rounding and one of a whole run would look the same."""
    found = one(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), torch.tensor([1.0, 2.5, 2.0], dtype=torch.float64))
    assert (found.kind, found.max_abs, found.detail) == ("values", 1.0, "2 of 3 differ, by up to 1")
    assert one(torch.tensor(1 + 1j), torch.tensor(1 - 1j)).max_abs == 2.0
    assert one(torch.tensor([True]), torch.tensor([False])).max_abs == 1.0
    assert math.isnan(one(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0])).max_abs or 0.0)
    assert one(torch.tensor([math.inf]), torch.tensor([1.0])).max_abs == math.inf


def test_integers_that_a_float_cannot_tell_apart_differ() -> None:
    """A counter that is one further."""
    found = one(torch.tensor(2**60), torch.tensor(2**60 + 1))
    assert found.kind == "values" and found.detail.startswith("1 of 1 differ")


def test_shapes_dtypes_and_names_are_compared() -> None:
    """A tensor that is not there would end in a traceback, or be passed over."""
    left = {"a": torch.zeros(2), "b": torch.zeros(2, 3), "c": torch.zeros(1)}
    right = {"a": torch.zeros(2, dtype=torch.float64) + 0.5, "b": torch.zeros(3, 2), "d": torch.zeros(1)}
    assert [(found.name, found.kind, found.max_abs) for found in compare_tensors(left, right)] == [
        ("a", "dtype", 0.5),
        ("b", "shape", None),
        ("c", "missing right", None),
        ("d", "missing left", None),
    ]
