from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain import BackboneFinetuning, BaseFinetuning, Callback, Module, Trainer
from drivetrain.base.errors import ConfigError
from drivetrain.testing.fixtures import NUM_CLASSES, NUM_FEATURES
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights


class Headed(Module):
    """A backbone and a head in float64; the optimizer gets what is not frozen."""

    def __init__(self, *, has_batch_norm: bool = False, scheduler: Any = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            norm = [nn.BatchNorm1d(10)] if has_batch_norm else []
            self.backbone = nn.Sequential(nn.Linear(NUM_FEATURES, 10), *norm, nn.Tanh())
            self.head = nn.Linear(10, NUM_CLASSES)
        self.scheduler = scheduler
        self.to(torch.float64)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.backbone(features))
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.1)
        return optimizer if self.scheduler is None else ([optimizer], [self.scheduler(optimizer)])


class Trail(Callback):
    """The rates of all groups and the backbone's weights at the end of each epoch."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []
        self.backbones: list[dict[str, Tensor]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])
        self.backbones.append(weights(pl_module.backbone))


def test_the_backbone_is_trained_from_its_epoch_on_at_a_rate_that_grows_to_the_heads() -> None:
    """It would be trained too early, never, or at a rate that destroys it."""
    trail = Trail()
    start = weights(Headed().backbone)  # type: ignore[arg-type]
    fit(Headed(), max_epochs=6, callbacks=[BackboneFinetuning(2), trail])
    assert [are_equal(start, one) for one in trail.backbones] == [True, True, False, False, False, False]
    assert trail.rates == [[0.1], [0.1], *([0.1, pytest.approx(rate)] for rate in (0.01, 0.02, 0.04, 0.08))]


def test_it_is_the_run_of_a_plain_loop() -> None:
    """A group that is added twice, or a parameter that is stepped in two of them."""
    module, _ = fit(Headed(), max_epochs=2, callbacks=[BackboneFinetuning(1)])
    plain = Headed()
    optimizer = torch.optim.AdamW(plain.head.parameters(), lr=0.1)
    for epoch in range(2):
        if epoch == 1:
            optimizer.add_param_group({"params": list(plain.backbone.parameters()), "lr": 0.1 * 0.1})
        for features, targets in loader():
            functional.cross_entropy(plain(features), targets).backward()
            if epoch == 0:
                for parameter in plain.backbone.parameters():
                    parameter.grad = None
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(weights(module), weights(plain), rtol=0, atol=1e-14)


SCHEDULERS = {
    "none": None,
    "lambda": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda epoch: 0.9**epoch),
    "cosine": lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("stop", [3, 6, 9, 12, 15])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, stop: int, scheduler: str) -> None:
    """The optimizer's state would not fit, or what was unfrozen be frozen again."""
    make = SCHEDULERS[scheduler]
    module, _ = fit(Headed(scheduler=make), max_epochs=3, callbacks=[BackboneFinetuning(1)])
    _, first = fit(Headed(scheduler=make), max_epochs=-1, max_steps=stop, callbacks=[BackboneFinetuning(1)])
    first.save_checkpoint(tmp_path / "a")
    resumed = Headed(scheduler=make)
    trainer = Trainer(**QUIET, max_epochs=3, callbacks=[BackboneFinetuning(1)])
    trainer.fit(resumed, loader(), ckpt_path=tmp_path / "a")
    assert are_equal(weights(resumed), weights(module))


@pytest.mark.parametrize("train_bn", [True, False])
def test_frozen_batch_norms_keep_their_statistics(train_bn: bool) -> None:
    """A backbone that is not trained would drift by its statistics."""
    trail = Trail()
    fit(Headed(has_batch_norm=True), max_epochs=2, callbacks=[BackboneFinetuning(1, train_bn=train_bn), trail])
    first, second = (one["1.running_mean"] for one in trail.backbones)
    assert bool((first == 0).all()) is not train_bn and not torch.equal(first, second)
    assert torch.equal(trail.backbones[0]["1.weight"], torch.ones(10, dtype=torch.float64)) is not train_bn


def test_parts_of_ones_own_are_unfrozen_one_after_the_other() -> None:
    """Only one group could ever be added."""

    class Own(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze([pl_module.net[0], pl_module.net[2]])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch in (1, 2):
                self.unfreeze_and_add_param_group(pl_module.net[{1: 2, 2: 0}[epoch]], optimizer, lr=0.01)

    class Whole(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([*self.extra.parameters()], lr=0.1)

        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(4, 4).to(torch.float64)

        def loss_of(self, batch: Any) -> Tensor:
            return functional.cross_entropy(self.extra(self.net(batch[0])), batch[1])

    _, trainer = fit(Whole(), max_epochs=3, callbacks=[Own()])
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [0.1, 0.01, 0.01]


def test_a_module_without_a_backbone_is_refused() -> None:
    """All of it would be trained from the beginning."""
    with pytest.raises(ConfigError) as raised:
        fit(callbacks=[BackboneFinetuning()])
    assert raised.value.code == "finetuning"
