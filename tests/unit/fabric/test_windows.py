"""Windows: where an epoch is cut, what a window knows of itself, and how it may be left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import ConfigError, DataError, ModelError, NonFiniteError, StepOutputError, WindowError
from drivetrain.testing.fixtures import make_dataset
from tests.unit.fabric.raw_loop import Watched, open_fabric


def loader(length: int, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(make_dataset(length), batch_size=batch_size)


def rounds_of(watched: Watched, batches: Any, **options: Any) -> list[int]:
    """Micro-batches of each window of an epoch."""
    found: list[int] = []
    for window in watched.fabric.windows(batches, watched.model, watched.optimizer, **options):
        found.append(sum(window.backward(None) or 1 for _ in window))
    return found


@pytest.mark.filterwarnings("ignore:A window had no weight")
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({}, [1] * 7),
        ({"size": 3}, [3, 3, 1]),
        ({"size": 100}, [7]),
        ({"size": 3, "limit": 5}, [3, 2]),
        ({"limit": 0}, []),
        ({"size": 2, "limit": 100}, [2, 2, 2, 1]),
    ],
)
def test_an_epoch_is_cut_into_windows(options: dict[str, Any], rounds: list[int]) -> None:
    """Batches would be lost at the end of an epoch."""
    watched = Watched()
    assert rounds_of(watched, watched.fabric.setup_dataloaders(loader(28)), **options) == rounds
    assert rounds_of(watched, iter_only(loader(28)), **options) == rounds, "without a length"


class IterOnly:
    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def iter_only(batches: Any) -> IterOnly:
    return IterOnly(batches)


def test_the_size_of_windows_may_grow_with_the_steps() -> None:
    """A warm-up of the batch size would need a loop of one's own."""
    watched, sizes = Watched(), []
    for window in watched.fabric.windows(loader(40), watched.model, watched.optimizer, size=lambda step: step + 1):
        for features, targets in window:
            window.backward(functional.cross_entropy(watched.model(features), targets))
        sizes.append(window.index + 1)
    assert sizes == [1, 2, 3, 4]


def test_a_window_knows_where_it_is() -> None:
    """A loop could not log at the last micro-batch, nor resume."""
    watched, seen = Watched(), []
    batches = watched.fabric.setup_dataloaders(loader(18))
    for window in watched.fabric.windows(batches, watched.model, watched.optimizer, size=2):
        assert not window.is_done
        for features, targets in window:
            seen.append((window.start, window.rounds, window.index, window.is_last, window.samples))
            window.backward(functional.cross_entropy(watched.model(features), targets))
    assert seen == [
        (0, 2, 0, False, 4),
        (0, 2, 1, True, 4),
        (2, 2, 0, False, 4),
        (2, 2, 1, True, 4),
        (4, 1, 0, True, 2),
    ]


def test_gradients_are_zero_after_each_window() -> None:
    """Each step would hold the gradients of all before it."""
    watched = Watched()
    for window in watched.fabric.windows(loader(8), watched.model, watched.optimizer, size=1):
        assert all(p.grad is None for p in watched.net.parameters())
        for features, targets in window:
            window.backward(functional.cross_entropy(watched.model(features), targets))
    assert all(p.grad is None for p in watched.net.parameters())


def test_a_window_that_is_left_halfway_is_an_error() -> None:
    """Gradients of two windows would be mixed into one step."""
    watched = Watched()
    with pytest.raises(WindowError, match="left after 1 of its micro-batches") as caught:
        for window in watched.fabric.windows(loader(16), watched.model, watched.optimizer, size=2):
            for features, targets in window:
                window.backward(functional.cross_entropy(watched.model(features), targets))
                break
    assert caught.value.code == "window-left" and watched.gradients == []


def test_the_outer_loop_may_be_left_between_windows() -> None:
    """An epoch could not be ended early."""
    watched = Watched()
    for window in watched.fabric.windows(loader(16), watched.model, watched.optimizer, size=2):
        for features, targets in window:
            window.backward(functional.cross_entropy(watched.model(features), targets))
        break
    assert len(watched.gradients) == 1


@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_a_window_size_that_means_nothing_is_refused(size: Any) -> None:
    """No step, or one after each batch, would be made."""
    watched = Watched()
    with pytest.raises(ConfigError) as caught:
        watched.fabric.windows(loader(8), watched.model, watched.optimizer, size=size)
    assert caught.value.code == "window-size" and repr(size) in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        ("text", "The loss is a str, 'text'"),
        (0.5, "The loss is a float, 0.5"),
        (torch.ones(3, requires_grad=True), "The loss has shape [3]"),
        (torch.tensor(1.0), "The loss has no graph"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, text: str) -> None:
    """torch would speak of grad_fn, or backward would do nothing."""
    watched = Watched()
    with pytest.raises(StepOutputError) as caught:
        watched.run(loader(8), lambda model, window, batch: window.backward(loss))
    assert caught.value.code == "loss" and text in str(caught.value)


def test_a_loader_that_is_shorter_than_it_says_is_an_error() -> None:
    """A window would silently be shorter; with several ranks all others would wait."""

    class Boastful:
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Any:
            return iter(list(DataLoader(make_dataset(8), batch_size=4)))

    watched = Watched()
    with pytest.raises(DataError, match="ended after 2 batches; its length says 4") as caught:
        watched.run(Boastful(), size=4)
    assert caught.value.code == "loader-length"


@pytest.mark.parametrize("options", [{"max_norm": 0.01}, {"max_value": 0.001}])
def test_gradients_are_clipped_after_they_are_rescaled(options: dict[str, float]) -> None:
    """A short window would be clipped harder than a full one."""
    watched = Watched()
    gradients = watched.run(loader(20), size=3, **options)
    assert len(gradients) == 2
    for gradient in gradients:
        if "max_norm" in options:
            norm = torch.linalg.vector_norm(torch.cat([one.flatten() for one in gradient]))
            assert abs(float(norm) - 0.01) < 1e-6
        else:
            assert max(float(one.abs().max()) for one in gradient) == 0.001


def test_an_infinite_norm_does_not_stop_a_window_but_clip_gradients() -> None:
    """A raw loop that asks for an error would step on nan."""
    watched = Watched()
    watched.net[0].weight.grad = torch.full_like(watched.net[0].weight, torch.inf)
    with pytest.raises(NonFiniteError) as caught:
        watched.fabric.clip_gradients(watched.model, max_norm=1.0)
    assert caught.value.code == "non-finite"


def test_clipping_gives_the_norm_before_and_reaches_the_parameters_asked_for() -> None:
    """A logged norm would be that after clipping; clipping one optimizer would scale the other's gradients."""
    fabric = open_fabric()
    first, second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    both = nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    model, optimizer = fabric.setup(both, optimizer)
    for one in (first, second):
        one.weight.grad = torch.tensor([[3.0, 4.0]])
    norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
    assert float(norm) == 5.0
    assert torch.allclose(first.weight.grad, torch.tensor([[0.6, 0.8]])) and second.weight.grad.tolist() == [[3.0, 4.0]]
    assert fabric.clip_gradients(model, clip_val=2.0) is None
    assert second.weight.grad.tolist() == [[2.0, 2.0]]
    with pytest.raises(ConfigError) as caught:
        fabric.clip_gradients(model)
    assert caught.value.code == "clip"


def test_no_backward_sync_takes_a_flag_and_modules_that_were_set_up() -> None:
    """`no_backward_sync(model, enabled=is_accumulating)` is how a raw loop defers its sync."""
    watched = Watched()
    for enabled in (True, False):
        with watched.fabric.no_backward_sync(watched.model, enabled=enabled):
            watched.fabric.backward(watched.model(make_dataset(2).tensors[0]).sum())
    with watched.fabric.no_backward_sync([watched.model, watched.model]):
        pass
    with pytest.raises(ModelError, match="Sequential was not set up") as caught:
        watched.fabric.no_backward_sync(watched.net)
    assert caught.value.code == "not-set-up"


def test_an_optimizers_own_way_to_zero_gradients_is_used() -> None:
    """Gradients that it keeps on purpose would be dropped."""

    class Keeps(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    fabric = open_fabric()
    net = nn.Linear(2, 1)
    model, optimizer = fabric.setup(net, Keeps(net.parameters(), lr=0.1))
    for window in fabric.windows([torch.ones(1, 2)], model, optimizer):
        for x in window:
            window.backward(model(x).sum())
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
