"""What modules can be sharded: tied and frozen parameters, unused ones, checkpointed activations, the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from drivetrain import FSDP
from tests.ranks.open_fabric import error_of
from tests.ranks.sharded_training import (
    Deep,
    difference,
    mean_gradients,
    opened,
    samples,
    sharded_fabric,
    whole_gradients,
    whole_weights,
)


class Tied(nn.Module):
    """Two parts share a parameter with what is outside; some parameters are frozen; a buffer differs by rank."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.last = nn.Linear(8, 4)
        self.layers[1].weight = self.layers[0].weight
        self.layers[2].weight.requires_grad_(False)
        self.register_buffer("offset", torch.zeros(4))
        self.double()

    def loss_on(self, features: Any, targets: Any) -> Any:
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return functional.cross_entropy(self.last(features) + self.offset, targets)


def test_tied_and_frozen_parameters_and_buffers_are_those_of_the_module(ranks: Any) -> None:
    """A tied parameter would become two, a frozen one get a gradient, ranks keep what they were made with."""

    def in_rank() -> Any:
        with opened() as strategy:
            rank = strategy.collectives.rank
            module = Tied()
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data += rank  # every rank gets what rank 0 holds
            prepared: Any = strategy.prepare(module, methods=("loss_on",))
            kinds = type(module), {type(one).__name__ for one in module.layers}
            strategy.backward(strategy.call(prepared, "loss_on", *samples(range(3 * rank, 3 * rank + 3))), prepared)
            assert module.layers[0].weight is module.layers[1].weight
            return len(prepared.parts), kinds[0] is Tied, kinds[1], whole_gradients(module), module.offset.clone()

    expected = mean_gradients([range(3), range(3, 6)], Tied())
    for num_parts, is_own, kinds, found, offset in ranks.run(in_rank):
        assert (num_parts, is_own, kinds) == (2, True, {"Linear", "FSDPLinear"})
        assert found.pop("layers.2.weight") is None
        assert difference(found, expected) < 1e-14
        assert not offset.any()


class Halves(nn.Module):
    """Two layers in one group; a call may use one of them only."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.left, self.right = nn.Linear(8, 4).double(), nn.Linear(8, 4).double()

    def loss_on(self, features: Any, targets: Any, uses_both: bool = True) -> Any:
        outputs = self.left(features) + (self.right(features) if uses_both else 0.0)
        return functional.cross_entropy(outputs, targets)


def test_a_parameter_without_a_gradient_is_an_error_or_counts_as_zero(ranks: Any) -> None:
    """Ranks would reduce gradients of different sizes with one another."""

    def in_rank(find_unused_parameters: bool, used: tuple[bool, bool]) -> Any:
        with opened(find_unused_parameters=find_unused_parameters) as strategy:
            module = Halves()
            prepared = strategy.prepare(module, methods=("loss_on",))
            uses_both = used[strategy.collectives.rank]
            strategy.backward(strategy.call(prepared, "loss_on", *samples(range(3)), uses_both), prepared)
            return whole_gradients(module)

    for kind, code, text in ranks.run(error_of, in_rank, False, (False, False)):
        assert (kind, code) == ("ModelError", "unused-parameters")
        assert "right.weight" in text and "find_unused_parameters=True" in text
    alone = Halves()
    ((alone.loss_on(*samples(range(3))) + alone.loss_on(*samples(range(3)), False)) / 2).backward()
    for found in ranks.run(in_rank, True, (True, False)):
        assert difference(found, {name: p.grad for name, p in alone.named_parameters()}) < 1e-14
    for found in ranks.run(in_rank, True, (False, False)):
        assert not found["right.weight"].any() and found["left.weight"].any()


def test_parameters_that_are_used_now_and_then_are_accumulated_in_one_format(ranks: Any) -> None:
    """torch accumulates in the format of the reduction, but only what has a gradient, and then refuses the mixture."""
    plans = [[(False, True), (None, None)], [(False, None), (None, True)]]  # uses both layers, one, or is idle

    def in_rank(plan: Any) -> Any:
        with opened(find_unused_parameters=True, precision="bf16-mixed") as strategy:
            module = Halves().float()
            prepared = strategy.prepare(module, methods=("loss_on",))
            features, targets = samples(range(3))
            for index, uses_both in enumerate(plan[strategy.collectives.rank]):
                with strategy.gradient_sync(prepared, index == 1):
                    if uses_both is None:
                        strategy.sync_idle(prepared)
                        continue
                    loss = strategy.call(prepared, "loss_on", features.float(), targets, uses_both)
                    strategy.backward(loss, prepared)
            return whole_gradients(module)

    alone = Halves()
    ((alone.loss_on(*samples(range(3)), False) + alone.loss_on(*samples(range(3)), True)) / 2).backward()
    for plan in plans:
        for found in ranks.run(in_rank, plan):
            for name, parameter in alone.named_parameters():
                assert (found[name].double() - parameter.grad).abs().max() < 1e-2, (plan, name)


def test_checkpointed_activations_give_the_same_gradients(ranks: Any) -> None:
    """A forward inside of the backward would be taken for a new micro-batch."""

    def in_rank() -> Any:
        with opened() as strategy:
            module = Deep()
            for block in module.blocks:
                own = block.forward
                block.forward = lambda x, own=own: checkpoint(own, x, use_reentrant=False)
            prepared = strategy.prepare(module, methods=("loss_on",))
            rank = strategy.collectives.rank
            for index in range(2):
                with strategy.gradient_sync(prepared, index == 1):
                    if rank == 1 and index == 1:
                        strategy.sync_idle(prepared)
                    else:
                        numbers = range(3 * (rank + 2 * index), 3 * (rank + 2 * index) + 3)
                        strategy.backward(strategy.call(prepared, "loss_on", *samples(numbers)), prepared)
            return whole_gradients(module)

    expected = {n: g * 1.5 for n, g in mean_gradients([range(0, 3), range(3, 6), range(6, 9)]).items()}
    for found in ranks.run(in_rank):
        assert difference(found, expected) < 1e-14


def test_what_cannot_be_sharded_is_refused_before_training(ranks: Any) -> None:
    """torch says so in the first forward, in other words, and not on the rank that is read."""

    def prepare(make: Any, options: dict[str, Any]) -> None:
        with opened(**options) as strategy:
            strategy.prepare(make())

    def sharded_twice() -> nn.Module:
        module = Deep()
        with opened() as strategy:
            strategy.prepare(module)
        return module

    def mixed() -> nn.Module:
        module = Deep()
        module.last.float()
        return module

    def on_meta() -> nn.Module:
        module = Deep()
        module.first = nn.Bilinear(8, 1, 10, device="meta", dtype=torch.float64)
        module.first.reset_parameters = None
        return module

    cases = [
        (mixed, {}, "mixed-dtypes"), (on_meta, {}, "meta-parameters"), (Deep, {"num_replicas": 2}, "num-replicas"),
        (Deep, {"shard": ["Block"]}, "shard-policy"), (sharded_twice, {}, "already-sharded"),
        (Deep, {"sync_batchnorm": True}, "sync-batchnorm"), (Deep, {"defer": "all-reduce"}, "defer"),
    ]  # fmt: skip
    for make, options, code in cases:
        for _, own, text in ranks.run(error_of, prepare, make, options):
            assert own == code, text


def test_a_module_on_the_meta_device_is_initialised_part_by_part_and_alike(ranks: Any) -> None:
    """A model that does not fit into one rank could not be made, or ranks would hold shards of different models."""

    def in_rank() -> Any:
        with opened() as strategy:
            torch.manual_seed(strategy.collectives.rank)
            with torch.device("meta"):
                module = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
            prepared = strategy.prepare(module, methods=("forward",))
            return whole_weights(strategy, prepared), strategy.call(prepared, "forward", torch.ones(1, 8)).detach()

    (first, output), (second, other) = ranks.run(in_rank)
    assert difference(first, second) == 0 and torch.equal(output, other)
    assert all(value.any() for value in first.values())


def test_a_method_that_was_not_prepared_says_so_when_it_fails_on_shards(ranks: Any) -> None:
    """Torch's error about mixed tensors says nothing of what to do."""

    def in_rank() -> Any:
        with sharded_fabric(FSDP()) as fabric:
            model = fabric.setup(Deep())
            try:
                model.loss_on(*samples(range(2)))
            except RuntimeError as error:
                return error.__notes__

    for (note,) in ranks.run(in_rank):
        assert "'loss_on' was not named when Deep was set up" in note and 'methods=("forward", "loss_on")' in note
