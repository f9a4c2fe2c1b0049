"""The gradient of a window is that of one big batch with all of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import StepOutputError
from drivetrain.testing.fixtures import make_dataset
from tests.unit.fabric.raw_loop import Watched, distance, gradient_of

TOLERANCE = 1e-14


@pytest.mark.parametrize(
    ("length", "batch_size", "size", "windows"),
    [
        pytest.param(24, 4, 3, [(0, 12), (12, 24)], id="even"),
        pytest.param(20, 4, 3, [(0, 12), (12, 20)], id="tail"),
        pytest.param(22, 4, 3, [(0, 12), (12, 22)], id="ragged"),
        pytest.param(9, 4, 8, [(0, 9)], id="one-ragged"),
        pytest.param(9, 4, 1, [(0, 4), (4, 8), (8, 9)], id="size-one"),
    ],
)
@pytest.mark.parametrize("is_set_up", [True, False])
def test_each_window_has_the_gradient_of_all_its_samples(
    length: int, batch_size: int, size: int, windows: list[tuple[int, int]], is_set_up: bool
) -> None:
    """The last window of an epoch, or a short batch, would make a step of the wrong length."""
    data, watched = make_dataset(length), Watched()
    loader: Any = DataLoader(data, batch_size=batch_size)
    if is_set_up:
        loader = watched.fabric.setup_dataloaders(loader)
    gradients = watched.run(loader, size=size)
    assert len(gradients) == len(windows)
    for gradient, (first, last) in zip(gradients, windows, strict=True):
        assert distance(gradient, gradient_of(data[i] for i in range(first, last))) < TOLERANCE


def test_a_stream_without_a_length_is_cut_alike() -> None:
    """A generator of batches would lose its last window, or scale it as a full one."""
    data, watched = make_dataset(22), Watched()

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(DataLoader(data, batch_size=4))

    gradients = watched.run(Stream(), size=4)
    assert len(gradients) == 2
    assert distance(gradients[0], gradient_of(data[i] for i in range(16))) < TOLERANCE
    assert distance(gradients[1], gradient_of(data[i] for i in range(16, 22))) < TOLERANCE


@pytest.mark.parametrize("as_tensor", [False, True])
def test_weights_are_those_of_what_the_losses_are_means_over(as_tensor: bool) -> None:
    """A mean over tokens would count a short text as much as a long one."""
    data, watched = make_dataset(12), Watched()
    weights = [1.0 + index % 5 for index in range(12)]

    def step(model: Any, window: Any, batch: Any) -> None:
        first = 4 * window.index
        own = torch.tensor(weights[first : first + 4], dtype=torch.float64)
        losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        total = own.sum()
        window.backward((losses * own).sum() / total, total if as_tensor else float(total))

    (gradient,) = watched.run(DataLoader(data, batch_size=4), step, size=3)
    assert distance(gradient, gradient_of([data[i] for i in range(12)], weights)) < TOLERANCE


@pytest.mark.parametrize("silent", [0, 1, 2])
@pytest.mark.parametrize("how", ["none", "weight"])
def test_a_micro_batch_that_adds_nothing_does_not_dilute_the_others(silent: int, how: str) -> None:
    """A batch that is skipped would shrink the step."""
    data, watched = make_dataset(12), Watched()

    def step(model: Any, window: Any, batch: Any) -> None:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        if window.index != silent:
            window.backward(loss)
        elif how == "none":
            window.backward(None)
        else:
            window.backward(loss * float("nan"), 0)

    (gradient,) = watched.run(DataLoader(data, batch_size=4), step, size=3)
    counted = [data[i] for i in range(12) if i // 4 != silent]
    assert distance(gradient, gradient_of(counted)) < TOLERANCE


def test_a_window_without_weight_makes_no_step_and_says_so_once() -> None:
    """The optimizer would step on gradients divided by zero; or each such window would be said."""
    watched = Watched()
    loader = DataLoader(make_dataset(16), batch_size=4)
    with pytest.warns(UserWarning, match="no weight on any rank") as said:
        gradients = watched.run(loader, lambda model, window, batch: window.backward(None), size=2)
    assert gradients == [] and len(said) == 1


def test_several_losses_of_a_micro_batch_add_up_and_weigh_once() -> None:
    """A model with two heads would get half of each."""
    data, watched = make_dataset(8), Watched()

    def step(model: Any, window: Any, batch: Any) -> None:
        for part in (0.25, 0.75):
            window.backward(functional.cross_entropy(model(batch[0]), batch[1]) * part)

    (gradient,) = watched.run(DataLoader(data, batch_size=4), step, size=2)
    assert distance(gradient, gradient_of([data[i] for i in range(8)])) < TOLERANCE


def test_losses_of_one_micro_batch_must_have_one_weight() -> None:
    """Two weights of one batch have no common mean."""
    watched = Watched()

    def step(model: Any, window: Any, batch: Any) -> None:
        window.backward(model(batch[0]).sum(), 3)
        window.backward(model(batch[0]).sum(), 5)

    with pytest.raises(StepOutputError, match="3 and over 5 units") as caught:
        watched.run(DataLoader(make_dataset(8), batch_size=4), step, size=2)
    assert caught.value.code == "loss"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_loss_of_a_window_is_the_mean_that_was_given(size: int) -> None:
    """What is shown would depend on how a batch is cut."""
    watched, losses = Watched(), []
    fabric = watched.fabric
    for window in fabric.windows(
        DataLoader(make_dataset(6), batch_size=6 // size), watched.model, watched.optimizer, size=size
    ):
        assert window.loss is None
        for features, targets in window:
            window.backward(functional.cross_entropy(watched.model(features), targets))
        losses.append(float(window.loss))
    features, targets = make_dataset(6).tensors
    whole = functional.cross_entropy(watched.net(features), targets).item()
    assert len(losses) == 1 and abs(losses[0] - whole) < TOLERANCE
