"""The window of one micro-batch on each of several ranks makes the step of any other window."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain.fabric.synced_window import SyncedWindow
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.rank_runner import RankRunner
from tests.ranks.open_fabric import open_fabric, sgd

Losses = list[tuple[torch.Tensor, Any]]
Forward = Callable[[], torch.Tensor]

STOPS_AT = 3


def one(number: int, rank: int, y: Forward) -> Losses:
    """The usual loss."""
    return [(y().pow(2).mean(), None)]


def named(number: int, rank: int, y: Forward) -> Losses:
    """The usual weight, but said."""
    return [(y().pow(2).mean(), [4, torch.tensor(4)][rank])]


def weighted(number: int, rank: int, y: Forward) -> Losses:
    """A weight of its own on one rank now and then."""
    return [(y().pow(2).mean(), 3 if rank == number % 3 else None)]


def balanced(number: int, rank: int, y: Forward) -> Losses:
    """Weights of their own, that add up to the usual sum."""
    return [(y().pow(2).mean(), [3, 5][rank])]


def sometimes_none(number: int, rank: int, y: Forward) -> Losses:
    """Windows without a loss on one rank, or on all of them, and with one that counts nothing."""
    if number == 2 or (number == 1 and rank == 0):
        return []
    return [(y().pow(2).mean(), 0 if number == 3 and rank == 1 else None)]


def sometimes_nan(number: int, rank: int, y: Forward) -> Losses:
    """A loss that is not finite, on one rank."""
    return [(y().pow(2).mean() * (float("nan") if number == 2 and rank == 1 else 1.0), None)]


def train(losses: Any, policies: dict[str, Any], stops: bool) -> dict[str, Any]:
    """In a rank: an epoch; weights and what was agreed after each window, and of which kind the windows were."""
    with open_fabric() as fabric, warnings.catch_warnings(), CommCounter() as counter:
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        net = nn.Linear(3, 1).double()
        model, optimizer = fabric.setup(net, sgd(net))
        data = TensorDataset(torch.randn(43, 3, dtype=torch.float64))
        loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4))
        trace, agreed, kinds = [], [], []
        for number, window in enumerate(fabric.windows(loader, model, optimizer, **policies)):
            kinds.append(isinstance(window._window, SyncedWindow))
            if stops and number == STOPS_AT and fabric.global_rank == 1:
                fabric.stop_signals.received = signal.SIGTERM
            for (x,) in window:
                for loss, weight in losses(number, fabric.global_rank, lambda x=x: model(x)):
                    window.backward(loss, weight)
            trace.append(net.weight.detach().clone())
            agreed.append((window.is_stop_agreed, window.is_end_agreed, window.skipped))
        fabric.stop_signals.received = None
        return {"trace": trace, "agreed": agreed, "kinds": kinds, "calls": dict(counter.calls)}


@pytest.mark.parametrize(
    ("losses", "policies"),
    [
        (one, {}),
        (one, {"max_norm": 0.1}),
        (named, {}),
        (weighted, {}),
        (balanced, {}),
        (sometimes_none, {}),
        (sometimes_nan, {"nonfinite": "skip"}),
    ],
)
def test_it_makes_the_step_of_a_general_window(ranks: RankRunner, losses: Any, policies: dict[str, Any]) -> None:
    """Without it the short way of most runs could differ from the one that all other tests look at."""
    ours = ranks.run(train, losses, policies, False, world=2)
    general = ranks.run(train, losses, {**policies, "remainder": "drop"}, False, world=2)
    for one_rank, other in zip(ours, general, strict=True):
        assert one_rank["kinds"] == [True] * 5 + [False]  # the last micro-batch is not full
        assert not any(other["kinds"])
        assert all(torch.equal(a, b) for a, b in zip(one_rank["trace"], other["trace"], strict=True))
        assert one_rank["agreed"] == other["agreed"]
        assert one_rank["calls"] == other["calls"]


def test_all_ranks_hear_in_the_same_window_that_one_has_to_end(ranks: RankRunner) -> None:
    """One rank would leave while the others wait for its gradients."""
    for result in ranks.run(train, one, {}, True, world=2):
        assert [stop and end for stop, end, _ in result["agreed"]] == [number >= STOPS_AT for number in range(6)]
