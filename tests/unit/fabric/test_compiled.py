"""Compiling a module in place: what is compiled, what stays as it was, and what is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drivetrain import ConfigError, Fabric
from drivetrain.fabric.compiled import parts_to_compile
from drivetrain.testing.fixtures import NUM_FEATURES, make_dataset, make_mlp
from tests.counted_graphs import GRAPHS, counted

pytestmark = pytest.mark.usefixtures("fresh_graphs")


class Net(nn.Module):
    """A network with a head, and a second way to call it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make_mlp()
        self.act = nn.Tanh()

    def forward(self, features: Tensor) -> Tensor:
        return self.act(self.body(features))

    def squares(self, features: Tensor) -> Tensor:
        return self.body(features).square()


FEATURES = make_dataset(12).tensors[0]


def make(**options: Any) -> tuple[Any, Net]:
    """A module that was set up, and the user's own."""
    own = Net()
    return Fabric(accelerator="cpu").setup(own, **options), own


def test_a_forward_is_one_graph_and_names_stay() -> None:
    """Nothing would be compiled, or keys in checkpoints would begin with torch's."""
    model, own = make(compile={"backend": counted, "fullgraph": True})
    plain = copy.deepcopy(own)
    assert torch.equal(model(FEATURES), plain(FEATURES))
    assert len(GRAPHS) == 1
    assert list(model.state_dict()) == list(own.state_dict()) == list(Net().state_dict())
    assert type(model.body) is type(plain.body)


def test_a_further_method_calls_compiled_parts() -> None:
    """Only `forward` would be compiled, and a step method would run as ever."""
    model, _ = make(compile={"backend": counted}, methods=["squares"])
    model.squares(FEATURES)
    assert len(GRAPHS) == 1


@pytest.mark.parametrize(
    "make_net", [lambda: nn.Linear(NUM_FEATURES, 2), lambda: nn.Sequential(nn.Linear(NUM_FEATURES, 2), nn.ReLU())]
)
def test_torchs_own_modules_are_compiled_too(make_net: Any) -> None:
    """torch compiles no frame of its own files: a plain `nn.Linear` would silently run as ever."""
    model = Fabric(accelerator="cpu").setup(make_net(), compile={"backend": counted, "fullgraph": True})
    model(FEATURES.float())
    assert len(GRAPHS) == 1


def test_a_compiled_module_is_set_up_as_what_it_wraps() -> None:
    """Its names would be others than those of a module that is not compiled."""
    own = Net()
    model = Fabric(accelerator="cpu").setup(torch.compile(own, backend=counted))
    assert model.original is own
    model(FEATURES)
    assert len(GRAPHS) == 1
    assert list(model.state_dict()) == list(Net().state_dict())


def test_a_compiled_module_may_be_set_up_without_its_compilation() -> None:
    """A compilation that fails under a strategy could not be switched off."""
    for options in ({"_reapply_compile": False}, {"compile": False}):
        Fabric(accelerator="cpu").setup(torch.compile(Net(), backend=counted), **options)(FEATURES)
    assert GRAPHS == []


def test_a_compiled_part_is_compiled_in_place() -> None:
    """Names in checkpoints would hold torch's prefix, and the part would be compiled a second time by `compile`."""
    own = Net()
    own.body = torch.compile(own.body, backend=counted)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    model, _ = Fabric(accelerator="cpu").setup(own, optimizer)
    assert list(model.state_dict()) == list(Net().state_dict())
    model(FEATURES)
    assert len(GRAPHS) == 1


def test_the_last_setup_says_whether_a_module_is_compiled() -> None:
    """A module would stay compiled in a run that does not ask for it, or be compiled again where it is already."""
    own = Net()
    Fabric(accelerator="cpu").setup(own, compile={"backend": counted})
    first: Any = own._compiled_call_impl
    Fabric(accelerator="cpu").setup(own, compile={"backend": counted})
    assert own._compiled_call_impl is first
    Fabric(accelerator="cpu").setup(own)
    assert own._compiled_call_impl is None and own.body._compiled_call_impl is None
    own.compile(backend=counted)
    Fabric(accelerator="cpu").setup(own)
    assert own._compiled_call_impl is not None, "the user's own"


def test_copies_of_a_compiled_module_are_their_own() -> None:
    """A copy would run the module from which it was made, with that one's weights."""
    model, own = make(compile={"backend": counted})
    model(FEATURES)
    for copied in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        with torch.no_grad():
            copied.body[0].weight.zero_()
        assert not torch.equal(copied(FEATURES), own(FEATURES))


@pytest.mark.parametrize(("saves", "loads"), [(True, False), (False, True)])
def test_checkpoints_go_from_compiled_to_not_compiled_and_back(saves: bool, loads: bool, tmp_path: Any) -> None:
    """A model that was trained compiled could not be used without it."""

    def set_up(is_compiled: bool) -> tuple[Fabric, Any, Any]:
        fabric, own = Fabric(accelerator="cpu"), Net()
        optimizer = torch.optim.AdamW(own.parameters())
        return (fabric, *fabric.setup(own, optimizer, compile={"backend": "eager"} if is_compiled else None))

    fabric, model, optimizer = set_up(saves)
    model(FEATURES).sum().backward()
    optimizer.step()
    fabric.save(tmp_path / "one", {"model": model, "optimizer": optimizer})
    other, loaded, stepped = set_up(loads)
    other.load(tmp_path / "one", {"model": loaded, "optimizer": stepped})
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert len(stepped.state_dict()["state"]) == len(optimizer.state_dict()["state"])


@pytest.mark.parametrize("given", [{"mod": "default"}, "inductor", 3])
def test_what_torch_does_not_know_is_refused(given: Any) -> None:
    """It would be an error of torch, much later."""
    with pytest.raises(ConfigError, match="torch.compile") as caught:
        make(compile=given)
    assert caught.value.code == "compile-options"


def test_a_backend_that_does_not_exist_is_refused() -> None:
    """It would be an error in the first step."""
    with pytest.raises(ConfigError, match="no-such") as caught:
        make(compile={"backend": "no-such"})
    assert caught.value.code == "compile-options"


def test_a_module_without_a_forward_is_refused() -> None:
    """It would run as ever, and its user believe that it is compiled."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    with pytest.raises(ConfigError, match="nothing to compile") as caught:
        Fabric(accelerator="cpu").setup(Bare(), compile=True)
    assert caught.value.code == "compile-nothing"


@pytest.mark.filterwarnings("ignore:strategy='dp' wants")
@pytest.mark.parametrize("is_own", [True, False])
def test_replicas_of_one_process_are_not_compiled(is_own: bool) -> None:
    """Every copy would run the first device's module."""
    net = Net()
    if is_own:
        net.compile(backend="eager")
    with pytest.raises(ConfigError, match="dp") as caught:
        Fabric(accelerator="cpu", strategy="dp").setup(net, compile=None if is_own else {"backend": "eager"})
    assert caught.value.code == "compile-strategy"


def test_a_module_around_hooks_is_compiled_part_by_part() -> None:
    """Graphs would end at each hook of a wrapper."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.loss = nn.Linear(2, 2), nn.MSELoss()
            self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, features: Tensor) -> Tensor:
            return features

    module = Blocks()
    hooked = tuple(module.blocks)
    assert list(parts_to_compile(module, hooked)) == [module.first, *hooked]
    assert list(parts_to_compile(module)) == [module, module.first, *hooked]


def test_modes_and_shapes_may_change() -> None:
    """A compiled module would go on in the mode, or with the batch size, in which it was compiled."""
    model, own = make(compile={"backend": counted})
    own.body.insert(1, nn.Dropout(0.9))
    plain = copy.deepcopy(own)
    for size, is_training in [(8, True), (8, False), (5, True), (3, False)]:
        model.train(is_training), plain.train(is_training)
        torch.manual_seed(0)
        expected = plain(FEATURES[:size])
        torch.manual_seed(0)
        assert torch.equal(model(FEATURES[:size]), expected)
