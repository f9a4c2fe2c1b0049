"""One sync for each optimizer step, whatever the ranks hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

from drivetrain import DDP
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA, SMALL, Recorder, check_sent, fit, with_sgd
from tests.ranks.open_fabric import error_of, gradients, largest_difference, open_fabric, sgd, weights

FIRST_32 = Subset(DATA, range(32))


def first(length: int) -> Dataset[Any]:
    """The first samples."""
    return Subset(DATA, range(length))


# ---------------------------------------------------------------- one sync


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str)
@pytest.mark.parametrize("length", [2 * 2 * 8 * 3, 2 * 2 * 8 * 2 + 2 * 2 * 3, 2 * 2 * 8 * 2 + 7])
def test_a_trainer_syncs_a_window_of_eight_once_also_the_last_one(
    ranks: Any, length: int, options: dict[str, bool]
) -> None:
    """Eight times the traffic, silently."""

    def in_rank() -> Any:
        module = Recorder()
        fit(module, DataLoader(first(length), batch_size=2), accumulate_grad_batches=8, strategy=DDP(**options))
        return module.sent, parameter_bytes(module)

    for sent, full in ranks.run(in_rank):
        check_sent(sent, full, 3, num_extra=len(options))  # which parameters were used, one int32 for each


@pytest.mark.parametrize("length", [96, 96 + 12, 96 + 7])
def test_a_hand_written_loop_syncs_a_window_of_eight_once(ranks: Any, length: int) -> None:
    """As above, through `fabric.windows`."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*with_sgd(make_mlp()))
            loader = fabric.setup_dataloaders(DataLoader(first(length), batch_size=2))
            sent = []
            for window in fabric.windows(loader, model, optimizer, size=8, max_norm=1.0):
                with CommCounter() as counter:
                    for x, y in window:
                        window.backward(functional.cross_entropy(model(x), y))
                sent.append({name: (one.calls, one.bytes) for name, one in counter.counts().items()})
            return sent, parameter_bytes(model)

    for sent, full in ranks.run(in_rank):
        check_sent(sent, full, 3 if length == 96 else 4)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_window_over_two_modules_syncs_each_once_and_is_exact(ranks: Any, shares_memory: bool) -> None:
    """Generator and discriminator could not be trained in windows, or one of them would be synced each time."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            if fabric.world_size > 1 and not shares_memory:  # as on several machines
                fabric.collectives.board = None
            modules = [make_mlp(seed=1), make_mlp(seed=2, num_features=4)]
            optimizers = [sgd(module) for module in modules]
            first, second = (fabric.setup_module(module) for module in modules)
            loader = fabric.setup_dataloaders(DataLoader(FIRST_32, batch_size=4 // fabric.world_size))
            sent = []
            for window in fabric.windows(loader, [first, second], optimizers, size=4):
                with CommCounter() as counter:
                    for x, y in window:
                        window.backward(functional.cross_entropy(second(first(x)), y))
                sent.append((counter.num_calls("allreduce_"), counter.num_bytes("allreduce_")))
            return sent, sum(map(parameter_bytes, modules)), {**weights(first), **prefixed("second.", weights(second))}

    _, _, alone = in_rank()
    for sent, full, own in ranks.run(in_rank):
        assert sent == [(2, full) if shares_memory else (3, full + 72)] * 2
        assert largest_difference(own, alone) < 1e-12


def test_a_module_that_sits_out_the_last_micro_batch_is_synced_too(ranks: Any) -> None:
    """What its earlier micro-batches left would stay on the rank: weights drift apart without a word."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            modules = [make_mlp(seed=1), make_mlp(seed=2)]
            first, second = (fabric.setup_module(module) for module in modules)
            own = [DATA[2 * i : 2 * i + 2] for i in range(8)]
            if fabric.world_size > 1:  # each rank takes one half of every batch
                own = [DATA[2 * i + fabric.global_rank : 2 * i + fabric.global_rank + 1] for i in range(8)]
            sent = []
            for window in fabric.windows(own, [first, second], list(map(sgd, modules)), size=2):
                with CommCounter() as counter:
                    for x, y in window:
                        model = second if window.index == 0 else first
                        window.backward(functional.cross_entropy(model(x), y))
                sent.append(counter.num_bytes("allreduce_"))
            return sent, sum(map(parameter_bytes, modules)), {**weights(first), **prefixed("second.", weights(second))}

    _, _, alone = in_rank()
    for sent, full, own in ranks.run(in_rank):
        assert all(full <= size <= full + SMALL for size in sent)
        assert largest_difference(own, alone) < 1e-12


def test_unused_parameters_of_one_of_two_modules_are_named(ranks: Any) -> None:
    """With several modules nobody would look: its gradients differ between ranks, and the step is made with them."""

    class Extra(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_mlp()
            self.extra = torch.nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(x)
            return result

    def step() -> None:
        with open_fabric() as fabric:
            modules = [Extra(), make_mlp(num_features=4)]
            first, second = (fabric.setup_module(module) for module in modules)
            for window in fabric.windows([DATA[0:2]] * 2, [first, second], list(map(sgd, modules)), size=2):
                for x, y in window:
                    window.backward(functional.cross_entropy(second(first(x)), y))

    for kind, code, text in ranks.run(error_of, step):
        assert (kind, code) == ("ModelError", "unused-parameters")
        assert "not synced: extra.weight, extra.bias." in text


@pytest.mark.parametrize("batch_size", [4, 3])
def test_several_losses_of_a_micro_batch_add_up(ranks: Any, batch_size: int) -> None:
    """Each further loss would count as further samples, so that the gradients shrink, on several ranks only."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            modules = [make_mlp(seed=1), make_mlp(seed=2)]
            models = [fabric.setup_module(module) for module in modules]
            loader = fabric.setup_dataloaders(DataLoader(FIRST_32, batch_size=batch_size * 2 // fabric.world_size))
            losses = []
            for window in fabric.windows(loader, models, list(map(sgd, modules)), size=2):
                for x, y in window:
                    for model in models:
                        window.backward(functional.cross_entropy(model(x), y))
                losses.append(window.loss)
            return losses, {**weights(models[0]), **prefixed("second.", weights(models[1]))}

    alone_losses, alone = in_rank()
    modules = [make_mlp(seed=1), make_mlp(seed=2)]
    x, y = DATA[: 4 * batch_size]
    expected = functional.cross_entropy(modules[0](x), y) + functional.cross_entropy(modules[1](x), y)
    assert float(alone_losses[0]) == pytest.approx(expected.item())
    for _, own in ranks.run(in_rank):
        assert largest_difference(own, alone) < 1e-12


def test_losses_of_a_micro_batch_cannot_have_two_weights() -> None:
    """No one mean would be right for both."""

    def step() -> None:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*with_sgd(make_mlp()))
            for window in fabric.windows([DATA[0:2]], model, optimizer):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y), 2)
                    window.backward(functional.cross_entropy(model(x), y), 3)

    kind, code, text = error_of(step)
    assert (kind, code) == ("StepOutputError", "loss")
    assert "means over 2 and over 3 units" in text


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state under longer names."""
    return {prefix + name: value for name, value in state.items()}


# ---------------------------------------------------------------- no_backward_sync


def test_no_backward_sync_defers_one_module_and_several(ranks: Any) -> None:
    """Generator and discriminator could not be accumulated together, or one of them would sync each time."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            generator, discriminator = fabric.setup(make_mlp(seed=1)), fabric.setup(make_mlp(seed=2, num_features=4))
            x = DATA.tensors[0][fabric.global_rank * 8 :][:8]

            def backward(rows: Tensor) -> int:
                with CommCounter() as counter:
                    fabric.backward(discriminator(generator(rows)).square().mean())
                return counter.num_calls("allreduce_")

            counts = []
            with fabric.no_backward_sync([generator, discriminator]):
                counts.append(backward(x[:4]))
            with fabric.no_backward_sync(generator):
                counts.append(backward(x[4:]))
            counts.append(backward(x[4:]))
            return counts, gradients(generator), gradients(discriminator)

    (counts, *own), (_, *other) = ranks.run(in_rank)
    assert counts == [0, 1, 2]
    assert [largest_difference(a, b) for a, b in zip(own, other, strict=True)] == [0, 0]


def test_the_flag_comes_back_after_an_exception_when_nested_and_for_enabled_false(ranks: Any) -> None:
    """The next backward would not be synced: weights drift apart without a word."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            x = DATA.tensors[0][fabric.global_rank * 4 :][:4]
            counts = []

            def backward() -> None:
                with CommCounter() as counter:
                    fabric.backward(model(x).square().mean())
                counts.append(counter.num_calls("allreduce_"))

            try:
                with fabric.no_backward_sync(model):
                    raise KeyError("leaves the block")
            except KeyError:
                backward()
            with fabric.no_backward_sync(model, enabled=False):
                backward()
            backward()
            with fabric.no_backward_sync(model):
                with fabric.no_backward_sync(model, enabled=False):
                    backward()
                with fabric.no_backward_sync(model):
                    pass
                backward()
            backward()
            return counts

    assert ranks.run(in_rank) == [[1, 1, 1, 0, 0, 1]] * 2


def test_a_module_that_was_not_set_up_cannot_be_deferred(ranks: Any) -> None:
    """Its gradients would never be synced at all."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            return error_of(fabric.no_backward_sync, make_mlp())

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ModelError", "not-set-up")
        assert "Sequential" in text and "fabric.setup()" in text


# ---------------------------------------------------------------- nothing to add


CASES = {
    "a None on one rank": lambda rank, index: "none" if rank == 1 and index in (2, 3, 5) else None,
    "a None in the last micro-batch of one rank": lambda rank, index: "none" if rank == 0 and index == 3 else None,
    "only None in a window of one rank": lambda rank, index: "none" if rank == 0 and index < 4 else None,
    "weight 0 on one rank": lambda rank, index: 0 if rank == 1 and index in (1, 3) else 2,
    "a weight of 0 as a tensor": lambda rank, index: torch.tensor(0.0 if rank == 1 and index == 3 else 2.0),
    "weights that differ": lambda rank, index: 1 + rank + index % 3,
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_with_nothing_to_add_stays_in_step(ranks: Any, case: str) -> None:
    """The others would wait for ever, or the mean would count what was left out."""
    weight_of = CASES[case]

    def in_rank() -> Any:
        module = Recorder(weight_of)
        fit(module, DataLoader(first(32), batch_size=2), accumulate_grad_batches=4, strategy="ddp")
        return weights(module), module.sent, parameter_bytes(module)

    alone = make_mlp()
    optimizer = sgd(alone)
    for step in range(2):
        total, parts = 0.0, []
        for index in range(4 * step, 4 * step + 4):
            for rank in range(2):
                x, y = DATA[(index * 2 + rank) * 2 : (index * 2 + rank) * 2 + 2]
                weight = weight_of(rank, index)
                weight = 0 if weight == "none" else 2 if weight is None else float(weight)
                parts.append(weight * functional.cross_entropy(alone(x), y))
                total += weight
        (sum(parts) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
    for own, sent, full in ranks.run(in_rank):
        assert largest_difference({n.removeprefix("net."): v for n, v in own.items()}, weights(alone)) < 1e-12
        check_sent(sent, full, 2)


@pytest.mark.parametrize("nothing", ["none", 0])
def test_a_window_without_weight_on_any_rank_makes_no_step(ranks: Any, nothing: Any) -> None:
    """Momentum and weight decay would move the weights; or the division by 0 would make them nan."""

    def in_rank() -> Any:
        module = Recorder(lambda rank, index: nothing if index < 4 else 2)
        with pytest.warns(UserWarning, match="no weight on any rank"):
            trainer = fit(module, DataLoader(first(32), batch_size=2), accumulate_grad_batches=4, strategy="ddp")
        return weights(module), trainer.global_step

    (own, steps), (other, _) = ranks.run(in_rank)
    assert steps == 2
    assert largest_difference(own, other) == 0
    alone = make_mlp()
    x, y = DATA[16:32]
    functional.cross_entropy(alone(x), y).backward()
    sgd(alone).step()
    assert largest_difference({n.removeprefix("net."): v for n, v in own.items()}, weights(alone)) < 1e-12
