"""Ways in which people cut, nest and interrupt the windows of a loop; each makes the steps of one big batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain.fabric.window import Window
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.unit.fabric.raw_loop import Watched, open_fabric

DATA = make_dataset(40)


def exact(rows: slice, weights: Tensor | None = None) -> list[Tensor]:
    """The gradient of the (weighted) mean loss over these samples at once."""
    net = make_mlp()
    losses = functional.cross_entropy(net(DATA.tensors[0][rows]), DATA.tensors[1][rows], reduction="none")
    weight = torch.ones_like(losses) if weights is None else weights[rows]
    ((weight * losses).sum() / weight.sum()).backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def check(found: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    """The same steps, but for rounding."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for left, right in zip(one, other, strict=True):
            assert torch.allclose(left, right, rtol=1e-12, atol=1e-14)


def test_a_batch_that_is_cut_inside_of_the_loop_is_one_step() -> None:
    """Each slice of the last batch would make a step, or slices of other sizes would weigh alike."""
    watched = Watched()
    for x, y in DataLoader(DATA, batch_size=10):
        slices = list(zip(x.split(3), y.split(3), strict=True))
        watched.run(slices, size=len(slices))
    check(watched.gradients, [exact(slice(10 * i, 10 * i + 10)) for i in range(4)])


def test_weighted_windows_take_any_batch_and_need_no_length() -> None:
    """Weights would have to stand under a known name in the batch, or be read ahead of time."""
    weights = torch.arange(1.0, 41.0, dtype=torch.float64) % 7

    def stream() -> Iterator[Any]:
        for first in range(0, 40, 4):
            yield {"rows": list(range(first, first + 4)), "say": "any text"}

    def step(model: nn.Module, window: Window, batch: Any) -> None:
        rows = batch["rows"]
        losses = functional.cross_entropy(model(DATA.tensors[0][rows]), DATA.tensors[1][rows], reduction="none")
        weight = weights[rows].sum()
        window.backward((losses * weights[rows]).sum() / weight, weight)

    found = Watched().run(stream(), step, size=4)
    check(found, [exact(slice(first, first + 16), weights) for first in (0, 16, 32)])


@pytest.mark.parametrize("every", [1, 3])
def test_an_evaluation_in_the_middle_of_a_window_changes_no_step(every: int) -> None:
    """The end of the loader of evaluation would end the window of training, or lie in wait for the next one."""
    fabric = open_fabric()
    watched = Watched(fabric)
    held_out = fabric.setup_dataloaders(DataLoader(make_dataset(5, seed=1), batch_size=2), training=False)
    num_seen = 0

    def step(model: nn.Module, window: Window, batch: Any) -> None:
        nonlocal num_seen
        if (window.start + window.index) % every == 0:
            with torch.no_grad():
                num_seen += sum(len(model(x)) for x, _ in held_out)
        window.backward(functional.cross_entropy(model(batch[0]), batch[1]))

    watched.run(fabric.setup_dataloaders(DataLoader(DATA, batch_size=4)), step, size=4)
    check(watched.gradients, [exact(slice(first, first + 16)) for first in (0, 16, 32)])
    assert num_seen == 5 * -(-10 // every)


def test_windows_of_two_networks_may_be_nested() -> None:
    """The inner windows would end the outer one, or both would count the same steps."""
    fabric = open_fabric()
    outer, inner = Watched(fabric), Watched(fabric)
    loaders = [fabric.setup_dataloaders(DataLoader(DATA, batch_size=8)) for _ in range(2)]

    def step(model: nn.Module, window: Window, batch: Any) -> None:
        inner.run(loaders[1], size=5)
        window.backward(functional.cross_entropy(model(batch[0]), batch[1]))

    outer.run(loaders[0], step, size=2)
    check(outer.gradients, [exact(slice(0, 16)), exact(slice(16, 32)), exact(slice(32, 40))])
    check(inner.gradients, [exact(slice(0, 40))] * 5)


@pytest.mark.parametrize("size", [1, 3])
def test_clipped_gradients_have_at_most_the_norm_that_was_asked_for(size: int) -> None:
    """The norm would be reported and nothing clipped; or each micro-batch's part would be clipped by itself."""
    max_norm = 0.05
    found = Watched().run(DataLoader(DATA, batch_size=4), size=size, max_norm=max_norm)
    rows = [slice(first, min(first + 4 * size, 40)) for first in range(0, 40, 4 * size)]
    for gradients, part in zip(found, rows, strict=True):
        whole = exact(part)
        norm = torch.cat([g.flatten() for g in whole]).norm()
        assert norm > max_norm
        assert torch.cat([g.flatten() for g in gradients]).norm() <= max_norm
        check([gradients], [[g * max_norm / (norm + 1e-6) for g in whole]])  # as torch does
