"""Which parts of a module are sharded by themselves, and names of optimizer state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from drivetrain import FSDP, CheckpointError, ConfigError
from drivetrain.strategies.by_name import make_strategy
from drivetrain.strategies.fsdp_parts import choose_parts
from drivetrain.strategies.optimizer_names import named_state, renumbered


class Nested(nn.Module):
    """Lists inside of parts, and parts inside of lists of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 4) for _ in range(2))
        self.experts = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])])
        self.acts = nn.ModuleList([nn.ReLU(), nn.ReLU()])
        self.head = nn.Linear(4, 4)


def names(module: nn.Module, policy: Any) -> list[str]:
    known = {id(one): name for name, one in module.named_modules()}
    return [known[id(one)] for one in choose_parts(module, policy)]


def test_by_default_each_module_in_a_list_is_a_part() -> None:
    """A model would be gathered in one piece, or in pieces that have no parameters."""
    expected = ["experts.0.1", "experts.0.0", "encoder.layers.1", "encoder.layers.0"]
    assert names(Nested(), None) == expected


def test_parts_can_be_chosen_by_class_or_by_a_function() -> None:
    """Only models with lists could be cut."""
    module = Nested()
    assert names(module, [nn.TransformerEncoderLayer, nn.Linear])[:2] == ["head", "experts.0.1"]
    chosen = names(module, [nn.TransformerEncoderLayer, nn.Linear])
    assert chosen.index("encoder.layers.0.linear1") < chosen.index("encoder.layers.0")  # inner ones first
    assert names(module, lambda one: one is module.head) == ["head"]
    assert names(module, ()) == names(module, lambda one: one is module) == []


def test_a_part_that_shares_a_parameter_with_the_rest_is_none() -> None:
    """torch would refuse the module in its first forward."""
    module = Nested()
    module.experts[0][1].weight = module.experts[0][0].weight
    assert names(module, None) == ["encoder.layers.1", "encoder.layers.0"]
    module.experts.append(module.experts[0])  # the same module twice is one part
    assert names(module, [nn.ModuleList]) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [({"defer": "later"}, "defer"), ({"defer": "all-reduce"}, "defer")],
)
def test_arguments_that_say_nothing_are_refused(options: dict[str, Any], code: str) -> None:
    """A run would sync as often as by default, without a word."""
    with pytest.raises(ConfigError) as caught:
        FSDP(**options)
    assert caught.value.code == code


def test_fsdp_has_a_name() -> None:
    """It could not be asked for in a configuration file."""
    assert isinstance(make_strategy("fsdp", num_ranks=2), FSDP)


def state_and_names(order: list[int]) -> Any:
    parameters = [nn.Parameter(torch.full((2,), float(i))) for i in range(3)]
    optimizer = torch.optim.SGD([parameters[i] for i in order], lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = parameter.detach() + 1
    optimizer.step()
    return optimizer, {id(parameter): f"p{i}" for i, parameter in enumerate(parameters)}


def test_optimizer_state_is_found_by_name_and_not_by_number() -> None:
    """A parameter would get another one's momentum."""
    saved = named_state(*state_and_names([0, 1, 2]))
    optimizer, known = state_and_names([2, 0, 1])
    optimizer.load_state_dict(renumbered(saved, optimizer, known, name="optimizer"))
    for parameter in optimizer.param_groups[0]["params"]:
        number = float(known[id(parameter)][1:])
        assert optimizer.state[parameter]["momentum_buffer"].tolist() == [number + 1] * 2


def test_state_without_names_is_taken_as_it_is() -> None:
    """A checkpoint of parameters that belong to no module could not be loaded."""
    optimizer, known = state_and_names([0, 1, 2])
    saved = named_state(optimizer, {})
    assert "parameter_names" not in saved
    assert renumbered(saved, optimizer, known, name="optimizer") is saved


def test_other_groups_are_an_error() -> None:
    """Parameters would be trained with the settings of another group."""
    saved = named_state(*state_and_names([0, 1, 2]))
    for order in ([0, 1], [0, 1, 2]):
        optimizer, known = state_and_names(order)
        if len(order) == 3:
            optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][:2]
        with pytest.raises(CheckpointError, match="p2"):
            renumbered(saved, optimizer, known, name="optimizer")
