"""Nested structures of tensors: what is changed, what is kept, and how many samples they hold."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from drivetrain.base.tree import batch_size_of, map_tensors, move_to, tensors_of


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclass
class Batch:
    features: Tensor
    name: str = "kept"


@dataclass(frozen=True)
class Frozen:
    features: Tensor


class Movable:
    """Not a tensor, but it says how it is moved."""

    def __init__(self) -> None:
        self.device = torch.device("meta")

    def to(self, device: torch.device) -> None:
        self.device = device


def double(tensor: Tensor) -> Tensor:
    return tensor * 2


@pytest.mark.parametrize(
    "tree",
    [
        {"a": torch.ones(2)},
        OrderedDict(a=torch.ones(2)),
        defaultdict(list, a=torch.ones(2)),
        [torch.ones(2)],
        (torch.ones(2),),
        Pair(torch.ones(2), None),
        Batch(torch.ones(2)),
        Frozen(torch.ones(2)),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_every_container_comes_back_as_its_own_type(tree: Any) -> None:
    """A step would get a plain dict or tuple where the collate function made something else."""
    changed = map_tensors(double, tree)
    assert type(changed) is type(tree)
    assert tensors_of(changed)[0].tolist() == [2.0, 2.0]
    assert tensors_of(tree)[0].tolist() == [1.0, 1.0], "the input was changed"


def test_a_default_dict_keeps_its_factory() -> None:
    """A missing key would become an error after the batch was moved."""
    changed = map_tensors(double, defaultdict(list, a=torch.ones(1)))
    assert changed["missing"] == []


def test_what_is_no_tensor_is_kept() -> None:
    """Strings and numbers of a batch would be lost or converted."""
    marker = object()
    tree = {"text": "abc", "number": 3, "none": None, "object": marker, "set": {1}, "deep": [("x", {"y": 1.5})]}
    changed = map_tensors(double, tree)
    assert changed == tree and changed["object"] is marker


def test_tensors_are_found_at_any_depth_in_order() -> None:
    """A tensor deep in a batch would stay on the wrong device."""
    tree = [
        torch.tensor(1),
        {"a": (torch.tensor(2), Batch(torch.tensor(3)))},
        "x",
        Pair(torch.tensor(4), [torch.tensor(5)]),
    ]
    assert [int(tensor) for tensor in tensors_of(tree)] == [1, 2, 3, 4, 5]


def test_moving_reaches_tensors_and_objects_that_can_be_moved() -> None:
    """A batch class with its own `to` would stay behind."""
    assert move_to({"a": [torch.ones(2)]}, torch.device("meta"))["a"][0].device.type == "meta"
    own = Movable()
    assert move_to(own, torch.device("cpu")) is own and own.device.type == "cpu"
    assert move_to("text", torch.device("meta")) == "text"


@pytest.mark.parametrize(
    ("tree", "size"),
    [
        (torch.zeros(5, 2), 5),
        (torch.tensor(1.0), 1),
        ((torch.zeros(3), torch.zeros(9)), 3),
        ({"scale": torch.tensor(1.0), "x": torch.zeros(4, 1)}, 4),
        (Batch(torch.zeros(6, 2)), 6),
        (Pair(torch.zeros(2), 7), 2),
        (["a", "b", "c"], 3),
        ({"names": ["a", "b"], "ids": torch.zeros(2)}, 2),
        ("text", 1),
        (3, 1),
        (None, 1),
        ([], 0),
    ],
)
def test_the_number_of_samples_is_that_of_the_first_part_that_has_one(tree: Any, size: int) -> None:
    """A loss would get the wrong weight where the loader does not know its batches."""
    assert batch_size_of(tree) == size
