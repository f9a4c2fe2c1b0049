from __future__ import annotations

import argparse
import enum
import io
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from drivetrain import CheckpointError
from drivetrain.checkpoint.plain_data import require_plain


class Color(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Subclass(torch.Tensor):
    pass


def marked(value: Any) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.mark = value  # type: ignore[attr-defined]
    return parameter


def containing_itself() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


PLAIN = [
    None,
    True,
    -(10**600),
    float("nan"),
    1 + 2j,
    "Größe\ud800",
    b"x" * 300,
    bytearray(b"x"),
    torch.Size([1]),
    torch.float32,
    torch.device("cpu"),
    torch.strided,
    OrderedDict(a=1),
    Counter("aa"),
    {(1, "a"): 2},
    {1, 2},
    torch.nn.Parameter(torch.ones(2)),
    torch.nn.Buffer(torch.ones(2)),
    torch.ones(3).to_sparse(),
    torch.ones((), dtype=torch.bfloat16),
    marked([True]),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_what_is_accepted_can_be_loaded(value: Any) -> None:
    """A checkpoint that is written for hours and that torch then refuses to load."""
    require_plain({"x": [value]})
    buffer = io.BytesIO()
    torch.save({"x": [value]}, buffer)
    buffer.seek(0)
    assert type(torch.load(buffer, weights_only=True)["x"][0]) is type(value)


def test_the_state_of_a_module_and_an_optimizer_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is too strict for what every run saves."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it when the first optimizer is made
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    require_plain([module.state_dict(), optimizer.state_dict(), schedule.state_dict(), torch.get_rng_state()])


REFUSED = [
    numpy.float64(1),
    numpy.ones(2),
    Color.RED,
    Point(1),
    Path("a"),
    argparse.Namespace(a=1),
    defaultdict(int),
    frozenset(),
    slice(1),
    len,
    torch.nn.Linear(1, 1),
    Subclass(torch.ones(1)),
    1 << 2039,
    torch.ones(2, device="meta"),
    containing_itself(),
    marked(Path("a")),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_is_not_plain_is_refused_with_its_key_path(value: Any) -> None:
    """An object in the state that is found only when the run is resumed."""
    with pytest.raises(CheckpointError) as caught:
        require_plain({"callbacks": [{"best": value}]})
    assert caught.value.code == "checkpoint-plain-data"
    assert "state['callbacks'][0]['best']" in str(caught.value)


def test_keys_and_attributes_are_looked_at() -> None:
    """An object that hides where a state is not expected to hold one."""
    with pytest.raises(CheckpointError, match="the key .*RED.* of state is a .*Color"):
        require_plain({Color.RED: 1})
    state = torch.nn.Linear(1, 1).state_dict()
    state._metadata[""]["made_by"] = Path("a")  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"state\._metadata\[''\]\['made_by'\] is a pathlib"):
        require_plain(state)


def test_one_value_in_two_places_is_fine() -> None:
    """Tied weights that are taken for a circle."""
    shared = [torch.ones(1)]
    require_plain([shared, shared])
