"""Manual optimisation and windows of one's own blocks: on ranks as in one process, with one sync for each step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import drivetrain
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA, fit
from tests.ranks.open_fabric import error_of, largest_difference, open_fabric, weights

SMALL = 128


class Players(nn.Module):
    """A generator that changes the features, and a discriminator that judges them."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(8, 8, dtype=torch.float64)
        self.discriminator = make_mlp(num_features=8)
        with torch.no_grad():
            for index, parameter in enumerate(self.generator.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) * (index + 1))

    def judged(self, x: Tensor, y: Tensor, *, fake: bool) -> Tensor:
        """The discriminator's loss on what the generator made, or on the data."""
        return functional.cross_entropy(self.discriminator(self.generator(x).detach() if fake else x), y)

    def fooled(self, x: Tensor, y: Tensor) -> Tensor:
        """The generator's loss: its gradient goes through the discriminator."""
        return -functional.cross_entropy(self.discriminator(self.generator(x)), y)


def optimizers_of(players: Players) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    return (
        torch.optim.Adam(players.discriminator.parameters(), lr=0.02),
        torch.optim.AdamW(players.generator.parameters(), lr=0.01),
    )


def played_alone(num_samples: int, batch: int, every: int, epochs: int = 1, max_norm: float | None = None) -> Any:
    """Plain torch on full batches: the discriminator steps on each, the generator on `every` of them together."""
    players = Players()
    discriminator, generator = optimizers_of(players)
    steps = 0
    for _ in range(epochs):
        pending = []
        for start in range(0, num_samples, batch):
            x, y = DATA[start : min(start + batch, num_samples)]
            (players.judged(x, y, fake=False) + players.judged(x, y, fake=True)).backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(players.discriminator.parameters(), max_norm)
            discriminator.step()
            steps += 1
            discriminator.zero_grad()
            # Each generator loss is taken with the discriminator of its time, and counts by its samples.
            grads = torch.autograd.grad(players.fooled(x, y), list(players.generator.parameters()))
            pending.append((len(x), grads))
            if len(pending) == every or start + batch >= num_samples:
                total = sum(size for size, _ in pending)
                for index, parameter in enumerate(players.generator.parameters()):
                    parameter.grad = sum(size / total * one[index] for size, one in pending)
                generator.step()
                generator.zero_grad()
                pending = []
    return weights(players), steps


class Manual(drivetrain.Module):
    """The players, each with its own window."""

    automatic_optimization = False

    def __init__(self, *, every: int = 1, max_norm: float | None = None, how: str = "window") -> None:
        super().__init__()
        self.players = Players()
        self.every, self.max_norm, self.how = every, max_norm, how
        self.sent: list[list[tuple[int, int]]] = []

    def configure_optimizers(self) -> Any:
        return list(optimizers_of(self.players))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        counter = CommCounter()
        with counter:
            getattr(self, f"{self.how}_step")(x, y)
        self.sent.append([(one.calls, one.bytes) for one in counter.counts().values()])
        self.log("loss", self.players.fooled(x, y))

    def window_step(self, x: Tensor, y: Tensor) -> None:
        discriminator, generator = self.optimizers()
        with self.window(discriminator, max_norm=self.max_norm) as window:
            window.backward(self.players.judged(x, y, fake=False) + self.players.judged(x, y, fake=True))
        with self.window(generator, size=self.every) as window:
            window.backward(self.players.fooled(x, y))

    def familiar_step(self, x: Tensor, y: Tensor) -> None:
        """As people write it who come from elsewhere."""
        discriminator, generator = self.optimizers()
        self.toggle_optimizer(discriminator)
        discriminator.zero_grad()
        self.manual_backward(self.players.judged(x, y, fake=False))
        self.manual_backward(self.players.judged(x, y, fake=True))
        if self.max_norm is not None:
            self.clip_gradients(discriminator, gradient_clip_val=self.max_norm, gradient_clip_algorithm="norm")
        discriminator.step()
        self.untoggle_optimizer(discriminator)
        self.toggle_optimizer(generator)
        generator.zero_grad()
        self.manual_backward(self.players.fooled(x, y))
        generator.step()
        self.untoggle_optimizer(generator)

    def plain_step(self, x: Tensor, y: Tensor) -> None:
        """Without any of the module's own tools."""
        discriminator, generator = self.optimizers()
        self.players.zero_grad()
        (self.players.judged(x, y, fake=False) + self.players.judged(x, y, fake=True)).backward()
        discriminator.step()
        self.players.zero_grad()
        self.players.fooled(x, y).backward()
        generator.step()


def played(num_samples: int, batch: int, epochs: int, options: dict[str, Any]) -> Any:
    """In each rank: the players' weights, steps and what was sent."""
    module = Manual(**options)
    trainer = fit(module, DataLoader(Subset(DATA, range(num_samples)), batch_size=batch), max_epochs=epochs)
    return weights(module.players), trainer.global_step, module.sent


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [24, 29, 25])
@pytest.mark.parametrize("every", [1, 3])
def test_two_players_with_windows_of_their_own_are_those_of_one_process(
    ranks: Any, world: int, num_samples: int, every: int
) -> None:
    """A GAN on several ranks would drift, or be synced in each micro-batch, or mix the players' gradients."""
    alone, steps = played_alone(num_samples, 6, every, epochs=2, max_norm=0.3)
    options = {"every": every, "max_norm": 0.3}
    for own, own_steps, _ in ranks.run(played, num_samples, 6 // world, 2, options, world=world):
        assert largest_difference(own, alone) < 1e-12
        assert own_steps == steps


@pytest.mark.parametrize("how", ["familiar", "plain"])
@pytest.mark.parametrize("num_samples", [24, 29, 25])
def test_steps_as_people_write_them_are_those_of_one_process(ranks: Any, how: str, num_samples: int) -> None:
    """`loss.backward()` inside of a wrapper's forward would never be synced, and nobody would hear of it."""
    max_norm = 0.3 if how == "familiar" else None
    alone, _ = played_alone(num_samples, 6, 1, epochs=2, max_norm=max_norm)
    for own, _, _ in ranks.run(played, num_samples, 3, 2, {"how": how, "max_norm": max_norm}, world=2):
        assert largest_difference(own, alone) < 1e-12


def test_each_players_gradients_are_sent_once_for_its_own_step(ranks: Any) -> None:
    """A generator that steps at every fourth batch would send its gradients four times, or both players' each time."""
    sizes = [8 * sum(p.numel() for p in one.parameters()) for one in (Players().discriminator, Players().generator)]
    for _, _, sent in ranks.run(played, 48, 3, 1, {"every": 4}, world=2):
        for index, counts in enumerate(sent):
            full = sizes[0] + (sizes[1] if index % 4 == 3 else 0)
            assert full <= sum(size for _, size in counts) <= full + 2 * SMALL + 16


def test_a_raw_loop_has_the_same_windows(ranks: Any) -> None:
    """Only a Trainer's users could train a GAN with windows."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            players = Players()
            discriminator, generator = optimizers_of(players)
            judge, maker = fabric.setup_module(players.discriminator), fabric.setup_module(players.generator)
            windows = fabric.window(discriminator, max_norm=0.3), fabric.window(generator, size=3)
            for start in range(0, 29, 6):
                x, y = DATA[start : min(start + 6, 29)]
                x, y = (part.tensor_split(fabric.world_size)[fabric.global_rank] for part in (x, y))
                with windows[0] as window:
                    loss = functional.cross_entropy(judge(x), y) + functional.cross_entropy(judge(maker(x).detach()), y)
                    window.backward(loss, weight=len(x))
                with windows[1] as window:
                    window.backward(-functional.cross_entropy(judge(maker(x)), y), weight=len(x))
            assert not windows[0].flush() and windows[1].flush()
            return weights(players), [window.num_steps for window in windows]

    alone, _ = played_alone(29, 6, 3, max_norm=0.3)
    for world in (1, 2, 3):
        for own, steps in ranks.run(in_rank, world=world):
            assert largest_difference(own, alone) < 1e-12 and steps == [5, 2]


def test_a_rank_that_has_nothing_for_one_player_goes_along(ranks: Any) -> None:
    """A None loss, or a parameter that one rank does not use, would hang the others or leave them different."""

    def uneven() -> Any:
        with open_fabric() as fabric:
            module = nn.ModuleList([make_mlp(), make_mlp(seed=1), make_mlp(seed=2)])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1)
            for one in module:
                fabric.setup_module(one)
            window = fabric.window(optimizer, size=2)
            x, y = DATA[0:4]
            with window:
                window.backward(functional.cross_entropy(module[fabric.global_rank](x), y), weight=4)
            with window:
                window.backward(None, weight=4)
            return weights(module)

    alone = nn.ModuleList([make_mlp(), make_mlp(seed=1), make_mlp(seed=2)])
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, weight_decay=0.1)
    x, y = DATA[0:4]
    (functional.cross_entropy(alone[0](x), y) / 2 + functional.cross_entropy(alone[1](x), y) / 2).backward()
    optimizer.step()  # the third was used by nobody: not even its weight decays
    for own in ranks.run(uneven):
        assert largest_difference(own, weights(alone)) < 1e-12


class Bare(Manual):
    """Steps on an optimizer that does not sync."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self.players.judged(*batch, fake=False))
        self.trainer.optimizers[0].step()


def fit_bare() -> None:
    fit(Bare(), DataLoader(Subset(DATA, range(8)), batch_size=2))


def test_a_step_beside_the_sync_is_refused_on_several_ranks(ranks: Any) -> None:
    """The ranks' weights would drift apart without a word."""
    for kind, code, text in ranks.run(error_of, fit_bare):
        assert (kind, code) == ("WindowError", "bare-step") and "self.optimizers()" in text


class Scaled(Manual):
    """In float16 with a scaled loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.players.float()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step((batch[0].float(), batch[1]), batch_idx)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(one.parameters(), lr=0.1) for one in (self.players.discriminator, self.players.generator)
        ]


def test_manual_steps_in_float16_follow_those_of_one_process(ranks: Any) -> None:
    """One of two optimizers would step on gradients of another scale."""

    def in_rank(how: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module = Scaled(how=how, every=1, max_norm=0.3)
            size = 6 // current_cluster().world_size
            fit(module, DataLoader(Subset(DATA, range(24)), batch_size=size), precision="16-mixed")
            return weights(module.players)

    for how in ("window", "familiar"):
        (alone,), (own, other) = ranks.run(in_rank, how, world=1), ranks.run(in_rank, how)
        assert largest_difference(own, other) == 0
        assert largest_difference(own, alone) < 3e-2
    (kind, code, text), _ = ranks.run(error_of, in_rank, "plain")
    assert (kind, code) == ("WindowError", "loss-scale") and "manual_backward" in text
