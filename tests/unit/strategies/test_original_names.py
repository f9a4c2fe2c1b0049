"""Names of parameters with and without what torch's compiler adds to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from drivetrain.base.errors import CheckpointError
from drivetrain.strategies.original_names import original_name, renamed_for
from drivetrain.strategies.replicated_state import load_module


def test_a_name_is_that_of_the_users_module() -> None:
    """A wrapper inside of a wrapped module would stay in the name."""
    assert original_name("_orig_mod.net._orig_mod.0.weight") == "net.0.weight"
    assert original_name("net.weight") == "net.weight"


@pytest.mark.parametrize("is_saved", [True, False])
def test_an_older_checkpoint_of_a_wrapped_module_fits(is_saved: bool) -> None:
    """A checkpoint that holds torch's prefix, or a module that does, would be missing all of the other's names."""
    wrapped: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    plain = nn.Linear(2, 2)
    source, target = (wrapped, plain) if is_saved else (plain, wrapped)
    load_module(target, source.state_dict(), strict=True, name="model")
    assert torch.equal(wrapped.weight, plain.weight)


def test_what_is_not_there_keeps_the_name_under_which_it_was_saved() -> None:
    """The error of a load would name what is not in the checkpoint."""
    assert renamed_for({"a": 1, "_orig_mod.b": 2}, ["b"]) == {"a": 1, "b": 2}
    with pytest.raises(CheckpointError, match="_orig_mod.other"):
        load_module(nn.Linear(2, 2), {"_orig_mod.other": torch.ones(1)}, strict=True, name="model")
