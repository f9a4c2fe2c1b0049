"""Steps without torch's bookkeeping: the same step, and torch's own call wherever somebody looks at it."""

import functools

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from drivetrain.strategies.optimizer_calls import step_once, zero_gradients


def made(kind: type[Optimizer] = SGD) -> tuple[nn.Parameter, Optimizer]:
    """A parameter with a gradient, and its optimizer."""
    parameter = nn.Parameter(torch.arange(3, dtype=torch.float64))
    parameter.grad = torch.ones_like(parameter)
    return parameter, kind([parameter], lr=0.1)  # type: ignore[call-arg]


class Wrapping(SGD):
    """A user's own step that looks like the one it goes on to."""

    calls = 0

    @functools.wraps(SGD.step)
    def step(self, *args, **kwargs):
        self.calls += 1
        return super().step(*args, **kwargs)


class Counting(SGD):
    """A user's own optimizer, with its own calls."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)

    def zero_grad(self, set_to_none=True):
        self.calls += 1
        super().zero_grad(set_to_none)


@pytest.mark.parametrize("kind", [SGD, Adam, Counting])
def test_a_step_changes_the_weights_as_torch_does(kind: type[Optimizer]) -> None:
    """A step that is not torch's own would train another model."""
    (ours, optimizer), (theirs, known) = made(kind), made(kind)
    for _ in range(3):
        step_once(optimizer)
        known.step()
    assert torch.equal(ours, theirs) and not torch.equal(ours, torch.arange(3.0).double())
    assert ours.requires_grad and torch.is_grad_enabled()


def test_hooks_of_an_optimizer_are_called() -> None:
    """A hook that someone has registered would never run."""
    _, optimizer = made()
    heard: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
    step_once(optimizer)
    _, optimizer = made()
    optimizer.register_step_post_hook(lambda *_: heard.append("after"))
    step_once(optimizer)
    assert heard == ["before", "after"]


def test_hooks_of_all_optimizers_are_called() -> None:
    """A hook for all optimizers would miss those of a run."""
    _, optimizer = made()
    heard: list[str] = []
    handle = register_optimizer_step_pre_hook(lambda *_: heard.append("all"))
    step_once(optimizer)
    handle.remove()
    step_once(optimizer)
    assert heard == ["all"]


def test_a_schedulers_wrapper_around_the_step_is_called() -> None:
    """Torch's schedulers look at whether the optimizer has stepped, and warn if it seems not to have."""
    _, optimizer = made()
    scheduler = StepLR(optimizer, 1)
    step_once(optimizer)
    assert optimizer._opt_called  # type: ignore[attr-defined]
    scheduler.step()


def test_a_profiler_sees_the_records_of_torch() -> None:
    """A trace would lack the optimizer."""
    _, optimizer = made()
    with torch.profiler.profile() as profile:
        step_once(optimizer)
        zero_gradients(optimizer)
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


def test_gradients_are_gone_after_zero() -> None:
    """What is left of a gradient would be in the next step."""
    parameter, optimizer = made()
    zero_gradients(optimizer)
    assert parameter.grad is None


def test_an_optimizers_own_methods_are_called() -> None:
    """A user's override would be passed by."""
    _, optimizer = made(Counting)
    step_once(optimizer)
    zero_gradients(optimizer)
    assert optimizer.calls == 2  # type: ignore[attr-defined]
    _, optimizer = made(Wrapping)
    step_once(optimizer)
    assert optimizer.calls == 1  # type: ignore[attr-defined]
    _, plain = made()
    heard: list[str] = []
    plain.step = lambda: heard.append("own")  # type: ignore[method-assign]
    plain.zero_grad = lambda: heard.append("own")  # type: ignore[method-assign]
    step_once(plain)
    zero_gradients(plain)
    assert heard == ["own", "own"]
