"""What `setup` gives back is the user's module in everything but the way it is called."""

from __future__ import annotations

import copy

import pytest
import torch

from drivetrain import MethodNotPreparedError, ModelError, OptimizerError
from tests.unit.fabric.raw_loop import Net, open_fabric

X = torch.ones(4, 3, dtype=torch.float64)


def test_names_are_those_of_the_users_module() -> None:
    """A checkpoint of the wrapped module would not load without drivetrain."""
    net = Net()
    names = list(net.state_dict())
    model = open_fabric().setup(net)
    assert list(model.state_dict()) == names == ["count", "layer.weight", "layer.bias"]
    assert [name for name, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
    assert [name for name, _ in model.named_buffers()] == ["count", "scratch"]
    assert [name for name, _ in model.named_children()] == ["layer"]
    assert all(own is theirs for own, theirs in zip(model.parameters(), net.parameters(), strict=True))


def test_state_loads_into_the_users_module() -> None:
    """Loading through the wrapper would go nowhere."""
    net, other = Net(), Net()
    model = open_fabric().setup(net)
    result = model.load_state_dict(other.state_dict())
    assert result.missing_keys == result.unexpected_keys == []
    assert torch.equal(net.layer.weight, other.layer.weight)


def test_attributes_are_read_and_set_on_the_users_module() -> None:
    """A script that reads or sets what its module holds would see or change a shell."""
    net = Net()
    model = open_fabric().setup(net)
    assert model.note == "own" and model.layer is net.layer
    model.note = "new"
    model.extra = torch.nn.Linear(2, 2)
    assert net.note == "new" and "extra.weight" in net.state_dict() and "extra.weight" in model.state_dict()
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing  # noqa: B018
    assert model.original is net


def test_modes_are_those_of_the_users_module() -> None:
    """Dropout would stay on in evaluation."""
    net = Net()
    model = open_fabric().setup(net)
    assert model.eval() is model
    assert not net.training and not net.layer.training and not model.training
    model.train()
    assert net.layer.training and model.training


def test_forward_and_prepared_methods_go_through_the_wrapper() -> None:
    """The step would run beside the wrapper, without autocast and without gradient sync."""
    fabric = open_fabric(precision="bf16-mixed")
    model, x = fabric.setup(Net().float(), methods=["loss_of"]), X.float()
    seen = []
    model.layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    assert model(x).dtype == torch.float32, "what autocast left comes back as float32"
    assert torch.equal(model.loss_of(x), model.loss_of(x=x))
    model.training_step(x, 0)
    assert seen == [torch.bfloat16] * 4


def test_a_method_that_was_not_prepared_is_refused_when_its_result_needs_gradients() -> None:
    """With several ranks it would train without gradient sync, and nobody would notice."""
    model = open_fabric().setup(Net())
    with pytest.raises(MethodNotPreparedError, match=r"'loss_of' was not named when Net was set up") as caught:
        model.loss_of(X)
    assert caught.value.code == "method" and 'methods=("forward", "loss_of")' in str(caught.value)


def test_a_method_that_was_not_prepared_may_run_without_gradients() -> None:
    """Helpers of the module could not be called."""
    model = open_fabric().setup(Net())
    assert model.num_outputs() == 2
    with torch.no_grad():
        assert model.loss_of(X).ndim == 0
    assert model.original.loss_of(X).requires_grad


def test_a_method_that_does_not_exist_cannot_be_prepared() -> None:
    """A typing error would show at the first call, on some rank."""
    with pytest.raises(MethodNotPreparedError, match="methods names 'los_of', but Net has no method") as caught:
        open_fabric().setup(Net(), methods=["los_of"])
    assert caught.value.code == "method"


def test_what_is_no_module_or_was_set_up_already_is_refused() -> None:
    """A module would be wrapped twice, and its gradients be synced twice."""
    fabric = open_fabric()
    for one in (fabric.setup(Net()), "text"):
        with pytest.raises(ModelError) as caught:
            fabric.setup(one)  # type: ignore[arg-type]
        assert caught.value.code == "setup-module"


def test_the_users_own_optimizer_comes_back() -> None:
    """A scheduler or a library that asks for a torch optimizer would refuse a wrapper."""
    net = Net()
    optimizers = [torch.optim.SGD(net.layer.parameters(), lr=0.1), torch.optim.AdamW(net.parameters())]
    methods = [type(one).step for one in optimizers]
    model, first, second = open_fabric().setup(net, *optimizers)
    assert first is optimizers[0] and second is optimizers[1]
    assert [type(one).step for one in optimizers] == methods and "step" not in vars(first)
    torch.optim.lr_scheduler.StepLR(first, 1)
    assert isinstance(model, torch.nn.Module)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    """It would step on parameters that never get a gradient."""
    net = Net()
    with pytest.raises(OptimizerError, match="SGD holds 2 of 4 parameters that are not Net's") as caught:
        open_fabric().setup(net, torch.optim.SGD([*net.parameters(), *Net().parameters()], lr=0.1))
    assert caught.value.code == "optimizer-parameters"
    with pytest.raises(OptimizerError, match="str is not a torch optimizer") as caught:
        open_fabric().setup(net, "sgd")  # type: ignore[arg-type]
    assert caught.value.code == "optimizer"


def test_a_scaled_optimizer_passes_everything_else_on() -> None:
    """Under float16 a script would lose `param_groups`, `zero_grad` and `state_dict`."""
    net = Net().float()
    fabric = open_fabric(precision="16-mixed")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model, wrapped = fabric.setup(net, optimizer)
    assert wrapped.optimizer is optimizer and wrapped.param_groups is optimizer.param_groups
    before = net.layer.bias.detach().clone()
    fabric.backward(model(X.float()).mean(), model)
    assert float(net.layer.bias.grad.abs().max()) > 100.0, "the loss was not scaled"
    fabric.clip_gradients(model, wrapped, max_norm=1e9)
    assert torch.allclose(net.layer.bias.grad, torch.full((2,), 0.5))
    assert wrapped.step() is True
    assert torch.allclose(net.layer.bias, before - 0.05)


def test_scaled_gradients_that_overflow_make_no_step() -> None:
    """Weights would become inf, and the scale would stay too large."""
    net = Net().float()
    fabric = open_fabric(precision="16-mixed")
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    before = copy.deepcopy(net.state_dict())
    fabric.backward(model(X.float()).mean() * torch.inf, model)
    assert optimizer.step() is False
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_closed_fabric_leaves_a_module_that_works() -> None:
    """The wrapper could not be freed before its process group; or the model could not be used after the run."""
    fabric = open_fabric()
    net = Net()
    model = fabric.setup(net)
    before = model(X)
    fabric.close()
    assert torch.equal(net(X), before)


def test_setting_up_leaves_the_modes_of_submodules() -> None:
    """A frozen encoder would drop neurons, and its batch norms would move, as soon as it is set up."""
    net = Net()
    net.layer.eval()
    fabric = open_fabric()
    fabric.setup(net)
    assert net.training and not net.layer.training
    fabric.close()
    assert net.training and not net.layer.training
