"""What is synced, how often, and what the synced gradient is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA, SMALL, Recorder, check_sent, fit
from tests.ranks.open_fabric import error_of, gradients, largest_difference, open_fabric, sgd, weights


class Scored(nn.Module):
    """Its loss is a method with a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp()

    def loss_on(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(x), y)


def parameter_bytes(module: nn.Module) -> int:
    """What one sync sends."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def test_a_method_with_a_name_of_its_own_is_synced_once_for_each_window(ranks: Any) -> None:
    """It would run beside the wrapper: no sync and no error, or one for each micro-batch."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            module = Scored()
            model, optimizer = fabric.setup(module, sgd(module), methods=("loss_on",))
            size = 4 if fabric.world_size > 1 else 8
            loader = fabric.setup_dataloaders(DataLoader(Subset(DATA, range(48)), batch_size=2))
            sent = []
            for window in fabric.windows(loader, model, optimizer, size=size):
                with CommCounter() as counter:
                    for x, y in window:
                        window.backward(model.loss_on(x, y))
                sent.append(counter.num_bytes("allreduce_"))
            return sent, parameter_bytes(module), weights(model)

    _, _, alone = in_rank()
    for sent, full, own in ranks.run(in_rank):
        assert len(sent) == 3 and all(full <= size <= full + SMALL for size in sent)
        assert largest_difference(own, alone) < 1e-12


def test_a_method_that_was_not_named_ends_the_step_on_all_ranks(ranks: Any) -> None:
    """Weights would drift apart without a word."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(Scored())
            return error_of(model.loss_on, *DATA[0:2])

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("MethodNotPreparedError", "method")
        assert 'methods=("forward", "loss_on")' in text


class Held(Recorder):
    """Evaluates too, over a loader with an odd number of batches."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))


def test_the_end_of_a_loader_of_evaluation_syncs_no_gradients(ranks: Any) -> None:
    """Validation inside an epoch would flush the window, or make the next one sync early."""

    def in_rank() -> Any:
        module = Held()
        loaders = [DataLoader(Subset(DATA, range(length)), batch_size=2) for length in (44, 14)]
        fit(module, *loaders, accumulate_grad_batches=3, val_check_interval=2, strategy="ddp", max_epochs=2)
        return module.sent, parameter_bytes(module), {n.removeprefix("net."): v for n, v in weights(module).items()}

    alone = make_mlp()
    optimizer = sgd(alone)
    for _ in range(2):
        for first in range(0, 44, 12):
            x, y = DATA[first : min(first + 12, 44)]
            functional.cross_entropy(alone(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    for sent, full, own in ranks.run(in_rank):
        check_sent(sent, full, 8)
        assert largest_difference(own, weights(alone)) < 1e-12


def test_layers_that_are_dropped_at_random_are_synced_once_for_each_window(ranks: Any) -> None:
    """What only an earlier micro-batch used would stay on its rank; the way out would be a sync for each of them."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([make_mlp(num_outputs=8, seed=seed) for seed in range(3)])
            self.head = make_mlp(seed=3)

        def forward(self, x: Tensor, kept: list[int]) -> Tensor:
            for index in kept:
                x = x + self.layers[index](x)
            result: Tensor = self.head(x)
            return result

    def in_rank() -> Any:
        with open_fabric(find_unused_parameters=True) as fabric:
            module = Dropping()
            model, optimizer = fabric.setup(module, sgd(module))
            world = fabric.world_size
            chosen = torch.Generator().manual_seed(0)
            own = [(i, DATA[2 * i : 2 * i + 2]) for i in range(120) if i % world == fabric.global_rank]
            kept = [[k for k in range(3) if torch.rand((), generator=chosen) < 0.5] for _ in range(120)]
            sent = []
            for window in fabric.windows(own, model, optimizer, size=6 // world):
                with CommCounter() as counter:
                    for number, (x, y) in window:
                        window.backward(functional.cross_entropy(model(x, kept[number]), y), 2)
                sent.append(counter.num_bytes("allreduce_"))
            compared = fabric.check_parameters(model)
            return sent, parameter_bytes(module), compared, weights(model)

    _, _, _, alone = in_rank()
    for sent, full, compared, own in ranks.run(in_rank):
        assert compared == 16
        # Beside the gradients DDP says in a map of 4 bytes a parameter which of them were used.
        assert len(sent) == 20 and all(full <= size <= full + 4 * compared + SMALL for size in sent)
        assert largest_difference(own, alone) < 1e-12


@pytest.mark.parametrize(("world", "size"), [(1, 8), (2, 4), (2, 1), (4, 2)])
def test_the_norm_of_a_step_is_that_of_the_full_batch(ranks: Any, world: int, size: int) -> None:
    """A norm that depends on ranks or micro-batches could not be compared with anybody's, nor clipped alike."""

    def in_rank() -> Any:
        norms: list[float] = []
        with open_fabric() as fabric:
            module = make_mlp()
            optimizer = sgd(module)
            optimizer.register_step_pre_hook(lambda *_: norms.append(_norm(module)))
            model, optimizer = fabric.setup(module, optimizer)
            loader = fabric.setup_dataloaders(DataLoader(Subset(DATA, range(32)), batch_size=32 // (world * size)))
            for window in fabric.windows(loader, model, optimizer, size=size):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y))
        return norms

    alone = make_mlp()
    functional.cross_entropy(alone(DATA.tensors[0][:32]), DATA.tensors[1][:32]).backward()
    for norms in ranks.run(in_rank, world=world):
        assert norms == [pytest.approx(_norm(alone), rel=1e-12)]


def _norm(module: nn.Module) -> float:
    found = [value.flatten() for value in gradients(module).values() if value is not None]
    return float(torch.cat(found).norm())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_loss_of_a_window_is_in_units_of_the_loss(ranks: Any, world: int) -> None:
    """An untrained classifier would not start near ln(classes): the loss would be divided by ranks or micro-batches."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            module = make_mlp()
            nn.init.zeros_(module[-1].weight)
            nn.init.zeros_(module[-1].bias)
            model, optimizer = fabric.setup(module, sgd(module))
            loader = fabric.setup_dataloaders(DataLoader(Subset(DATA, range(48)), batch_size=2))
            losses = []
            for window in fabric.windows(loader, model, optimizer, size=3):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y))
                losses.append(float(window.loss))
            return losses[0]

    assert ranks.run(in_rank, world=world) == [pytest.approx(math.log(4))] * world


def test_an_unused_layer_in_the_only_step_is_an_error_and_not_a_drift(ranks: Any) -> None:
    """Torch alone notices it in the next forward, which does not come: ranks would end with different weights."""

    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.spare = make_mlp(), nn.Linear(2, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.net(x)
            return result

    def in_rank() -> Any:
        with open_fabric() as fabric:
            module = Spare()
            nn.init.zeros_(module.spare.weight)
            nn.init.zeros_(module.spare.bias)
            model, optimizer = fabric.setup(module, sgd(module))

            def train() -> None:
                for window in fabric.windows([DATA[4 * fabric.global_rank :][:4]], model, optimizer):
                    for x, y in window:
                        window.backward(functional.cross_entropy(model(x), y))

            return error_of(train), fabric.check_parameters(model)

    for (kind, code, text), compared in ranks.run(in_rank):
        assert (kind, code) == ("ModelError", "unused-parameters")
        assert "spare.weight, spare.bias" in text
        assert compared == 6
