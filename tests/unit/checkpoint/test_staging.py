from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
import torch

from drivetrain import CheckpointError
from drivetrain.checkpoint.staging import Staging


def saved_bytes(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def rich_state() -> dict[str, Any]:
    """Everything that a copy could lose: shared memory, views, shared objects, attributes, parameters."""
    base = torch.randn(6, 4)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    marked = torch.nn.Parameter(torch.randn(2))
    marked.mark = [1, torch.ones(2)]  # type: ignore[attr-defined]
    shared = [1, 2]
    return {
        "module": module.state_dict(), "base": base, "view": base[1:3, ::2], "again": base, "lists": (shared, shared),
        "ordered": OrderedDict(a=1), "set": {1}, "parameter": marked, "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0, dtype=torch.float64), "sparse": torch.eye(3).to_sparse(),
        "conj": torch.randn(2, dtype=torch.complex64).conj(), "dtype": torch.bfloat16, "size": torch.Size([1, 2]),
        "wants": torch.ones(2, requires_grad=True), "bool": torch.tensor([True]), "half": torch.ones(3).bfloat16(),
    }  # fmt: skip


def test_a_copy_is_written_to_the_same_bytes() -> None:
    """A checkpoint that depends on whether training went on while it was written."""
    state = rich_state()
    state["conj"] = state["conj"].resolve_conj()
    assert saved_bytes(Staging().copy(state)) == saved_bytes(state)


def test_a_conjugate_view_is_copied_by_value() -> None:
    """Numbers with the wrong sign."""
    state = rich_state()["conj"]
    assert torch.equal(Staging().copy(state), state)


def test_what_changes_after_the_copy_is_not_in_it() -> None:
    """A checkpoint that mixes two steps."""
    state = {"weight": torch.zeros(1000), "steps": [1], "nested": {"moment": torch.zeros(3)}}
    copied = Staging().copy(state)
    state["weight"].add_(1)
    state["nested"]["moment"].add_(1)
    state["steps"].append(2)
    assert copied["weight"].sum() == 0 and copied["nested"]["moment"].sum() == 0 and copied["steps"] == [1]


def test_the_same_memory_is_used_for_the_next_copy() -> None:
    """Each save that asks the system for memory again, and pins it."""
    staging = Staging()
    state = {"weight": torch.randn(1000), "bias": torch.randn(10)}
    places = []
    for _ in range(3):
        staging.begin()
        copied = staging.copy(state)
        staging.finish()
        places.append((copied["weight"].data_ptr(), copied["bias"].data_ptr()))
        assert torch.equal(copied["weight"], state["weight"])
    assert len(set(places)) == 1 and staging.size_bytes == 4040


def test_memory_that_is_not_asked_for_again_is_given_back() -> None:
    """A run that keeps the copies of all shapes that it ever saved."""
    staging = Staging()
    for length in (1000, 10):
        staging.begin()
        staging.copy({"weight": torch.randn(length)})
        staging.finish()
    assert staging.size_bytes == 40


def test_what_could_not_be_loaded_is_refused_before_training_goes_on() -> None:
    """An error that comes steps later, from another thread."""
    with pytest.raises(CheckpointError) as caught:
        Staging().copy({"object": object()})
    assert caught.value.code == "checkpoint-plain-data"
