"""A rank without a micro-batch, or without a loss, issues what the others issue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import drivetrain
from drivetrain import FSDP
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import Recorder, find, with_sgd
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import (
    DATA,
    Deep,
    difference,
    mean_gradients,
    opened,
    samples,
    sharded_fabric,
    whole_gradients,
    whole_weights,
)
from tests.ranks.test_uneven_ranks import UNEVEN, Stream, train_shares

RUN, IDLE, NO_LOSS = "run", "idle", "no loss"
# What each rank does in each micro-batch of a window.
TWO_RANKS = {
    "all run": [[RUN, RUN, RUN], [RUN, RUN, RUN]],
    "one idle at the end": [[RUN, RUN, RUN], [RUN, RUN, IDLE]],
    "one idle from the start": [[RUN, RUN, RUN], [IDLE, IDLE, IDLE]],
    "one without losses": [[RUN, RUN, RUN], [NO_LOSS, RUN, NO_LOSS]],
    "nobody has a loss at first": [[NO_LOSS, NO_LOSS, RUN], [IDLE, IDLE, RUN]],
    "in turn": [[RUN, IDLE], [IDLE, RUN]],
    "nobody has a loss at the end": [[RUN, NO_LOSS], [IDLE, IDLE]],
    "nobody has a loss": [[IDLE, IDLE], [NO_LOSS, NO_LOSS]],
    "one forward without a loss": [[RUN], [NO_LOSS]],
}
FOUR_RANKS = {
    "mixed": [[RUN, RUN], [RUN, IDLE], [IDLE, NO_LOSS], [NO_LOSS, RUN]],
    "one runs": [[RUN, IDLE], [IDLE, IDLE], [NO_LOSS, IDLE], [IDLE, IDLE]],
}


def share_of(rank: int, index: int) -> range:
    start = 3 * (4 * index + rank)
    return range(start, start + 3)


def run_plans(plans: dict[str, list[list[str]]], options: dict[str, Any]) -> dict[str, Any]:
    """The gradients after a window of each plan; the strategy knows nothing of the plan before."""
    found = {}
    for name, plan in plans.items():
        with opened(**options) as strategy:
            module = Deep()
            prepared = strategy.prepare(module, methods=("loss_on",))
            rank, last = strategy.collectives.rank, len(plan[0]) - 1
            for index, what in enumerate(plan[rank]):
                with strategy.gradient_sync(prepared, index == last):
                    if what != IDLE:
                        loss = strategy.call(prepared, "loss_on", *samples(share_of(rank, index)))
                    if what == RUN:
                        strategy.backward(loss, prepared)
                    else:
                        strategy.sync_idle(prepared)
            strategy.finish_sync(prepared)
            found[name] = whole_gradients(module)
    return found


def check_plans(results: list[Any], plans: dict[str, list[list[str]]]) -> None:
    for name, plan in plans.items():
        world, num_batches = len(plan), len(plan[0])
        ran = [share_of(rank, i) for rank in range(world) for i in range(num_batches) if plan[rank][i] == RUN]
        expected = {key: torch.zeros_like(p) for key, p in Deep().named_parameters()}
        if ran:
            expected = {key: grad * len(ran) / world for key, grad in mean_gradients(ran).items()}
        for found in results:
            own = {key: torch.zeros_like(expected[key]) if g is None else g for key, g in found[name].items()}
            assert difference(own, expected) < 1e-14, name


def test_an_idle_rank_joins_every_collective_and_adds_nothing(ranks: Any) -> None:
    """The other ranks would wait for ever, or get gradients as parameters."""
    check_plans(ranks.run(run_plans, TWO_RANKS, {}), TWO_RANKS)


@pytest.mark.parametrize("options", [{"defer": "none"}, {"reshard_after_forward": False}], ids=str)
def test_an_idle_rank_joins_whatever_waits_for_the_last_micro_batch(ranks: Any, options: dict[str, Any]) -> None:
    """Gradients that are reduced earlier, or parts that stay whole, would be missed."""
    plans = {name: TWO_RANKS[name] for name in ("one without losses", "in turn")}
    check_plans(ranks.run(run_plans, plans, options), plans)


@pytest.mark.parametrize(
    "options",
    [{"num_replicas": 2}, {"num_replicas": 2, "defer": "all-reduce"}, {"reshard_after_forward": 2}],
    ids=str,
)
def test_an_idle_rank_joins_smaller_groups_of_ranks(ranks: Any, options: dict[str, Any]) -> None:
    """Replicas, or ranks over which parts are sharded between forward and backward, would wait for one another."""
    check_plans(ranks.run(run_plans, FOUR_RANKS, options, world=4), FOUR_RANKS)


class Branches(nn.Module):
    """Its parts run in another order than they were registered in, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.last = nn.Linear(8, 4)
        self.double()

    def loss_on(self, features: Any, targets: Any) -> Any:
        left = torch.tanh(self.parts[2](features))
        right = self.parts[0](self.parts[1](features)) + self.parts[1](left)
        return functional.cross_entropy(self.last(left * right), targets)


def test_a_rank_without_any_batch_follows_the_order_in_which_parts_run(ranks: Any) -> None:
    """It would gather one part while the others gather another: wrong parameters, or a rank that waits for ever."""

    def in_rank() -> Any:
        with opened() as strategy:
            module = Branches()
            prepared = strategy.prepare(module, methods=("loss_on",))
            for index in range(2):
                with strategy.gradient_sync(prepared, index == 1):
                    if strategy.collectives.rank == 0:
                        loss = strategy.call(prepared, "loss_on", *samples(share_of(0, index)))
                        strategy.backward(loss, prepared)
                    else:
                        strategy.sync_idle(prepared)
            return whole_gradients(module)

    expected = mean_gradients([share_of(0, 0), share_of(0, 1)], Branches())
    for found in ranks.run(in_rank):
        assert difference(found, expected) < 1e-14


def test_an_idle_rank_joins_several_modules_in_the_order_in_which_they_ran(ranks: Any) -> None:
    """One module after the other would deadlock: their forwards come before their backwards."""

    def in_rank() -> Any:
        with opened() as strategy:
            modules = [Deep(seed=1), Deep(seed=2)]
            prepared = [strategy.prepare(module, methods=("loss_on",)) for module in modules]
            for index in range(2):
                with strategy.gradient_sync(prepared, index == 1):
                    if strategy.collectives.rank == 0:
                        batch = samples(share_of(0, index))
                        losses = [strategy.call(one, "loss_on", *batch) for one in prepared]
                        strategy.backward(losses[0] + losses[1])
                    else:
                        strategy.sync_idle(prepared)
            return [whole_gradients(module) for module in modules]

    for found in ranks.run(in_rank):
        for seed, own in zip((1, 2), found, strict=True):
            assert difference(own, mean_gradients([share_of(0, 0), share_of(0, 1)], Deep(seed=seed))) < 1e-14


def test_a_module_that_sat_out_the_last_micro_batch_is_reduced_at_the_end(ranks: Any) -> None:
    """Its gradients would stay on each rank, or be reduced by those ranks only that ran it."""

    def in_rank(defer: str, num_replicas: int) -> Any:
        with opened(defer=defer, num_replicas=num_replicas) as strategy:
            modules = [Deep(seed=1), Deep(seed=2)]
            prepared = [strategy.prepare(module, methods=("loss_on",)) for module in modules]
            with strategy.gradient_sync(prepared, False):
                if strategy.collectives.rank == 0:
                    strategy.backward(strategy.call(prepared[0], "loss_on", *samples(range(3))))
                else:
                    strategy.sync_idle(prepared)
            with strategy.gradient_sync(prepared, True):
                strategy.backward(strategy.call(prepared[1], "loss_on", *samples(range(3))))
            for one in prepared:
                strategy.finish_sync(one)
            return [whole_gradients(module) for module in modules]

    expected = [mean_gradients([range(3)], Deep(seed=seed)) for seed in (1, 2)]
    for defer, num_replicas, world in [("reduce", 1, 2), ("all-reduce", 2, 4)]:
        first = {name: grad / world for name, grad in expected[0].items()}
        for found in ranks.run(in_rank, defer, num_replicas, world=world):
            assert difference(found[0], first) < 1e-14
            assert difference(found[1], expected[1]) < 1e-14


def test_a_changed_order_before_a_missing_loss_is_an_error(ranks: Any) -> None:
    """The rank would guess what the others do in their backward, and gather one part with another."""

    def in_rank() -> Any:
        with opened() as strategy:
            prepared = strategy.prepare(module := Branches(), methods=("loss_on", "forward"))
            module.forward = lambda x: module.parts[0](module.parts[2](x))  # type: ignore[method-assign]
            with strategy.gradient_sync(prepared, True):
                strategy.backward(strategy.call(prepared, "loss_on", *samples(range(3))), prepared)
            with strategy.gradient_sync(prepared, True):
                strategy.call(prepared, "forward", samples(range(3))[0])
                strategy.sync_idle(prepared)

    for kind, code, _ in ranks.run(error_of, in_rank):
        assert (kind, code) == ("ModelError", "idle-order")


def stream_once(shares: list[list[int]], how: str) -> Any:
    """Windows of 3 micro-batches of 2 over streams."""
    loader = DataLoader(Stream(shares), batch_size=2)
    strategy = FSDP(shard=[nn.Linear])
    if how == "trainer":
        module = Recorder()
        trainer = drivetrain.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=3, strategy=strategy, uneven="join",
        )  # fmt: skip
        trainer.fit(module, loader)
        found = whole_weights(strategy, trainer._fabric._modules[0].prepared)
        trainer._fabric.close()
        return {name.removeprefix("net."): value for name, value in found.items()}, module.seen
    seen: list[int] = []
    with sharded_fabric(strategy) as fabric:
        model, optimizer = fabric.setup(*with_sgd(make_mlp()))
        prepared = fabric.setup_dataloaders(loader, uneven="join")
        for window in fabric.windows(prepared, model, optimizer, size=3, uneven="join"):
            for x, y in window:
                seen += [find(row) for row in x]
                window.backward(functional.cross_entropy(model(x), y))
        return whole_weights(strategy, model.prepared), seen


@pytest.mark.parametrize("how", ["trainer", "fabric"])
def test_joined_ranks_count_each_sample_once_as_one_process(ranks: Any, how: str) -> None:
    """The run hangs at the end of the shortest rank, in the middle of a window."""
    for shares in UNEVEN.values():
        alone = train_shares(shares)
        for rank, (own, seen) in enumerate(ranks.run(stream_once, shares, how)):
            assert seen == shares[rank]
            assert difference(own, alone) < 1e-12


def test_an_evaluation_of_ones_own_sees_each_sample_once(ranks: Any) -> None:
    """A rank with one batch less would leave the others waiting for its shards."""

    def in_rank(source: Any) -> Any:
        with sharded_fabric(FSDP()) as fabric:
            model = fabric.setup(Deep())
            loader = fabric.setup_dataloaders(source, training=False, uneven="join")
            with torch.no_grad():
                outputs = [model(x) for x, _ in fabric.evaluation_batches(loader, model)]
            return outputs

    with torch.no_grad():
        expected = Deep()(samples(range(10))[0])
    sized = DataLoader(Subset(DATA, range(10)), batch_size=2)
    streamed = DataLoader(Stream([[*range(0, 10, 2), *range(1, 4, 2)], [5, 7, 9]]), batch_size=1)
    for source in (sized, streamed):
        found = [row for outputs in ranks.run(in_rank, source) for output in outputs for row in output]
        assert len(found) == 10
        for row in expected:
            assert min((row - one).abs().max().item() for one in found) < 1e-14
