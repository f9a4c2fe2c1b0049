"""Strategies whose ranks step apart: what they compute, when they send, what is evaluated and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain import DDP, DiLoCo, LocalSGD
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.strategies.local_round import round_of
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.ranks.counted_windows import fit
from tests.ranks.open_fabric import error_of, largest_difference, open_fabric, sgd, weights

SMALL = 128  # bytes: the most that is said beside parameters in one step


def batches(count: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """`count` micro-batches, the same in every process."""
    features, targets = make_dataset(count * size).tensors
    return list(zip(features.split(size), targets.split(size), strict=True))


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with a state of its own on each rank."""
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def train(
    strategy: Any, *, optimizer: Any = sgd, windows: int = 6, size: int = 2, seed: int = 0
) -> tuple[list[dict[str, Tensor]], list[int]]:
    """Weights after each window, and bytes sent in it."""
    with open_fabric(strategy=strategy) as fabric:
        module = make_mlp(seed=seed)
        model, stepper = fabric.setup(module, optimizer(module))
        own = batches(windows * size * fabric.world_size)[fabric.global_rank :: fabric.world_size]
        after, sent, counter = [], [], CommCounter()
        with counter:
            for window in fabric.windows(own, model, stepper, size=size):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y))
                after.append(weights(model))
                sent.append(counter.num_bytes())
                counter.clear()
        return after, sent


# ---------------------------------------------------------------- what is computed


def test_local_sgd_that_syncs_every_step_is_ddp(ranks: Any) -> None:
    """The mean would be another one than that of the gradients, or gradients be scaled for a sync that never comes."""
    local = ranks.run(lambda: train(LocalSGD(1)))
    exact = ranks.run(lambda: train(DDP()))
    for (own, _), (other, _) in zip(local, exact, strict=True):
        assert all(largest_difference(a, b) < 1e-12 for a, b in zip(own, other, strict=True))


def test_diloco_with_an_outer_step_of_one_is_local_sgd(ranks: Any) -> None:
    """The pseudo-gradient would have another scale or sign."""
    for sync_every in (1, 3):
        outer = ranks.run(
            lambda every: train(DiLoCo(every, outer_lr=1.0, outer_momentum=0.0), optimizer=adamw), sync_every
        )
        local = ranks.run(lambda every: train(LocalSGD(every), optimizer=adamw), sync_every)
        for (own, _), (other, _) in zip(outer, local, strict=True):
            assert all(largest_difference(a, b) < 1e-12 for a, b in zip(own, other, strict=True))


def test_diloco_makes_the_outer_step_of_the_paper(ranks: Any) -> None:
    """Momentum would be lost between rounds, or not look ahead."""
    every, lr, momentum = 3, 0.7, 0.9
    results = ranks.run(lambda: train(DiLoCo(every), optimizer=adamw, windows=9))
    anchor = [p.detach().clone() for p in make_mlp().parameters()]
    speed = [torch.zeros_like(one) for one in anchor]
    models = [make_mlp(), make_mlp()]
    optimizers = [adamw(model) for model in models]
    for step in range(9):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            x, y = zip(*batches(36)[rank::2][2 * step : 2 * step + 2], strict=True)
            functional.cross_entropy(model(torch.cat(x)), torch.cat(y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % every == 0:
            for index, (one, *own) in enumerate(zip(anchor, *(model.parameters() for model in models), strict=True)):
                way = one - sum(p.detach() for p in own) / 2
                speed[index] = momentum * speed[index] + way
                one -= lr * (way + momentum * speed[index])
                for p in own:
                    p.data.copy_(one)
        for (after, _), model in zip(results, models, strict=True):
            assert largest_difference(after[step], model.state_dict()) < 1e-12


@pytest.mark.parametrize("make", [LocalSGD, DiLoCo])
def test_ranks_are_equal_after_each_sync_and_only_then_is_anything_sent(ranks: Any, make: Any) -> None:
    """A sync would be left out, or each step send as much as DDP."""
    (first, sent), (second, _) = ranks.run(lambda: train(make(3), windows=7))
    equal = [largest_difference(a, b) == 0 for a, b in zip(first, second, strict=True)]
    assert equal == [False, False, True, False, False, True, False]
    full = parameter_bytes(make_mlp())
    for has_synced, size in zip(equal, sent, strict=True):
        assert (full if has_synced else 0) <= size <= (full if has_synced else 0) + SMALL


def test_all_ranks_begin_with_the_weights_of_rank_0(ranks: Any) -> None:
    """Without a wrapper that does it, means of unrelated models would be taken."""
    apart = ranks.run(lambda: train(LocalSGD(2), seed=current_cluster().rank, windows=1))
    alike = ranks.run(lambda: train(LocalSGD(2), windows=1))
    for (own, _), (other, _) in zip(apart, alike, strict=True):
        assert largest_difference(own[0], other[0]) == 0


def test_a_ranks_gradient_is_the_mean_over_its_own_weights(ranks: Any) -> None:
    """The weights of other ranks would scale its steps."""

    def in_rank() -> dict[str, Tensor]:
        with open_fabric(strategy=LocalSGD(100)) as fabric:
            model, optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(make_mlp()))
            rank = fabric.global_rank
            for window in fabric.windows(batches(8)[4 * rank : 4 * rank + 4], model, optimizer, size=2):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y), weight=1 + 2 * window.index + 7 * rank)
            return weights(model)

    for rank, own in enumerate(ranks.run(in_rank)):
        alone = make_mlp()
        optimizer = sgd(alone)
        for first, second in (batches(8)[4 * rank : 4 * rank + 2], batches(8)[4 * rank + 2 : 4 * rank + 4]):
            for number, (x, y) in enumerate((first, second)):
                weight = 1 + 2 * number + 7 * rank
                (functional.cross_entropy(alone(x), y) * weight / (4 + 14 * rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert largest_difference(own, alone.state_dict()) < 1e-12


# ---------------------------------------------------------------- when a round ends


@pytest.mark.parametrize("kind", ["lacks data", "has no loss"])
def test_a_rank_that_cannot_step_takes_part_in_the_syncs(ranks: Any, kind: str) -> None:
    """The others would wait for it, or schedules and window sizes differ between ranks from then on."""

    def in_rank(kind: str) -> Any:
        with open_fabric(strategy=LocalSGD(2)) as fabric:
            model, optimizer = fabric.setup(*(lambda m: (m, adamw(m)))(make_mlp()))
            is_short = fabric.global_rank == 1
            own = iter(batches(3 if is_short and kind == "lacks data" else 8))
            sizes, after = [], []
            windows = fabric.windows(own, model, optimizer, size=lambda step: 1 + step % 2, uneven="join")
            for window in windows:
                sizes.append(window.rounds)
                for x, y in window:
                    loss = None if is_short and kind == "has no loss" else functional.cross_entropy(model(x), y)
                    window.backward(loss)
                after.append(weights(model))
            return sizes, after, windows.job.num_steps, round_of(model.prepared).num_steps

    (_, first, steps, left), (sizes, second, other_steps, other_left) = ranks.run(in_rank, kind)
    assert (steps, left) == (other_steps, other_left) and steps == len(sizes) == 6
    equal = [largest_difference(a, b) == 0 for a, b in zip(first, second, strict=True)]
    assert equal == [False, True, False, True, False, True]


def test_a_step_that_one_rank_skips_for_an_overflow_counts_like_any_other(ranks: Any) -> None:
    """Ranks would sync at different steps, and wait for each other for ever."""

    def in_rank() -> Any:
        with open_fabric(strategy=LocalSGD(3), precision="16-mixed") as fabric:
            module = make_mlp().float()
            model, optimizer = fabric.setup(module, sgd(module))
            after = []
            for number, (x, y) in enumerate(batches(6)):
                scale = float("inf") if number == 1 and fabric.global_rank == 1 else 1.0
                fabric.backward(functional.cross_entropy(model(x.float()), y) * scale)
                optimizer.step()
                optimizer.zero_grad()
                after.append(weights(model))
            return after, fabric.strategy.scaler.get_scale()

    (first, scale), (second, smaller) = ranks.run(in_rank)
    assert scale > smaller
    equal = [largest_difference(a, b) == 0 for a, b in zip(first, second, strict=True)]
    assert equal == [True, False, True, True, True, True]  # both have the same data


def test_a_loop_of_ones_own_syncs_after_as_many_steps_also_with_two_optimizers(ranks: Any) -> None:
    """A raw loop would never sync, or each optimizer count a step of its own."""

    def in_rank() -> Any:
        with open_fabric(strategy=LocalSGD(2)) as fabric:
            module = make_mlp()
            optimizers = [torch.optim.SGD(module[index].parameters(), lr=0.1) for index in (0, 2)]
            model, *steppers = fabric.setup(module, *optimizers)
            after = []
            for x, y in batches(10)[fabric.global_rank :: 2]:
                with fabric.no_backward_sync(model, enabled=False):
                    fabric.backward(functional.cross_entropy(model(x), y))
                for stepper in steppers:
                    stepper.step()
                    stepper.zero_grad()
                after.append(weights(model))
            return after

    first, second = ranks.run(in_rank)
    equal = [largest_difference(a, b) == 0 for a, b in zip(first, second, strict=True)]
    assert equal == [False, True, False, True, False]


class TwoPaces(drivetrain.Module):
    """Two optimizers, one of which steps in every second batch."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = make_mlp(seed=1), make_mlp(seed=2)
        self.after: list[tuple[int, dict[str, Tensor]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        fast, slow = self.optimizers()
        with self.window(fast) as window:
            window.backward(functional.cross_entropy(self.fast(batch[0]), batch[1]))
        with self.window(slow, size=2) as window:
            window.backward(functional.cross_entropy(self.slow(batch[0]), batch[1]))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.after.append((self.global_step, weights(self)))

    def configure_optimizers(self) -> Any:
        return [sgd(self.fast), sgd(self.slow)]


def test_in_manual_optimisation_a_batch_in_which_an_optimizer_steps_is_one_step_of_the_round(ranks: Any) -> None:
    """Ranks would never sync, or a rank without data in the last batch stop counting."""

    def in_rank() -> Any:
        module = TwoPaces()
        fit(module, DataLoader(make_dataset(17), batch_size=2), strategy=LocalSGD(2), uneven="join")
        return module.after, weights(module)

    (first, ended), (second, other_ended) = ranks.run(in_rank)
    assert [step for step, _ in first] == [step for step, _ in second] == [1, 2, 3, 4, 5]
    equal = [largest_difference(a, b) == 0 for (_, a), (_, b) in zip(first, second, strict=True)]
    assert equal == [False, True, False, True, False]
    assert largest_difference(ended, other_ended) == 0


def test_a_window_of_ones_own_counts_as_a_step_of_the_modules_that_it_steps(ranks: Any) -> None:
    """Models that step at their own pace would sync at that of another, or not at all."""

    def in_rank() -> Any:
        with open_fabric(strategy=LocalSGD(2)) as fabric:
            fast, fast_optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(make_mlp(seed=1)))
            slow, slow_optimizer = fabric.setup(*(lambda m: (m, sgd(m)))(make_mlp(seed=2)))
            windows = fabric.window(fast_optimizer), fabric.window(slow_optimizer, size=2)
            after = []
            for x, y in batches(16)[fabric.global_rank :: 2]:
                for model, window in zip((fast, slow), windows, strict=True):
                    with window:
                        window.backward(functional.cross_entropy(model(x), y), weight=len(x))
                after.append((weights(fast), weights(slow)))
            return after

    first, second = ranks.run(in_rank)
    for index, pace in ((0, 2), (1, 4)):
        equal = [largest_difference(a[index], b[index]) == 0 for a, b in zip(first, second, strict=True)]
        synced = [number % pace == 0 for number in range(1, 9)]
        before_first_step = [number < 2 and index == 1 for number in range(1, 9)]
        held = [index == 1 and number > 4 and number % 4 == 1 for number in range(1, 9)]
        assert equal == [any(one) for one in zip(synced, before_first_step, held, strict=True)]


def test_a_parameter_that_is_frozen_stays_and_one_that_came_late_is_an_error(ranks: Any) -> None:
    """Outer momentum would move what is frozen; a late one would differ between ranks for good."""

    def in_rank() -> Any:
        with open_fabric(strategy=DiLoCo(1)) as fabric:
            module = make_mlp()
            module[0].bias.requires_grad_(False)
            model, optimizer = fabric.setup(module, sgd(module))
            (x, y), *_ = batches(1)
            kept = []
            for _ in range(3):
                fabric.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                kept.append(module[2].bias.detach().clone())
                module[2].bias.requires_grad_(False)
            module[0].bias.requires_grad_(True)
            return kept, error_of(optimizer.step)

    for kept, (kind, code, text) in ranks.run(in_rank):
        assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])
        assert (kind, code) == ("ModelError", "late-parameters") and "0.bias" in text


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: LocalSGD(0), "sync-every"),
        (lambda: DiLoCo(2.5), "sync-every"),  # type: ignore[arg-type]
        (lambda: DiLoCo(outer_lr=0), "outer-optimizer"),
        (lambda: DiLoCo(outer_momentum=1), "outer-optimizer"),
        (LocalSGD().use_sync_batchnorm, "sync-batchnorm"),
        (DiLoCo().use_sync_batchnorm, "sync-batchnorm"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Any, code: str) -> None:
    """A run would train without a sync, or without batch norms over ranks that were asked for."""
    kind, found, text = error_of(make)
    assert (kind, found) == ("ConfigError", code), text


def test_they_can_be_asked_for_by_name() -> None:
    """They would be found by class only."""
    for name, kind in (("local_sgd", LocalSGD), ("diloco", DiLoCo)):
        fabric = drivetrain.Fabric(accelerator="cpu", devices=1, strategy=name)
        assert type(fabric.strategy) is kind and fabric.strategy.traits.name == name
