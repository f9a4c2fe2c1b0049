"""Parts of a step that scripts override."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drivetrain import ConfigError, DiLoCo, HookError, LocalSGD, Trainer
from tests.unit.trainer.runs import QUIET, Classifier, are_equal, fit, loader, weights

NAMES = ("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step")


class Scheduled(Classifier):
    """Its rate falls with each step, or with what it monitors."""

    plateau = False

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.plateau:
            follows = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": follows, "monitor": "val_loss"}}
        falls = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falls, "interval": "step"}}


class Noted(Scheduled):
    """Overrides everything, and does what is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def backward(self, loss: Any) -> None:
        self.heard.append("backward")
        super().backward(loss, retain_graph=True)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.heard.append(("clip", gradient_clip_val, gradient_clip_algorithm))
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.heard.append(("step", epoch, batch_idx, optimizer.param_groups[0]["momentum"], float(optimizer_closure())))
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        self.heard.append(("zero", epoch, batch_idx))
        super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.heard.append(("scheduler", metric))
        super().lr_scheduler_step(scheduler, metric)


OPTIONS: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "max_epochs": 2}


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_what_does_the_usual_changes_nothing(precision: str) -> None:
    """To override a part of the step would be another step; or the loss scale be left out of it."""

    class Single(Scheduled):
        def __init__(self) -> None:
            super().__init__()
            self.float()

    class SingleNoted(Noted):
        def __init__(self) -> None:
            super().__init__()
            self.float()

    def train(module: Classifier) -> dict[str, Any]:
        features, targets = loader(24).dataset.tensors
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features.float(), targets), batch_size=4)
        fit(module, data, precision=precision, **OPTIONS)
        return weights(module)

    assert are_equal(train(Single()), train(SingleNoted()))


def test_each_part_is_called_once_in_its_place() -> None:
    """A rate that is warmed up in `optimizer_step` would be set too late, or for each micro-batch."""
    module, _ = fit(Noted(), loader(12), **{**OPTIONS, "max_epochs": 1})
    kinds = [one if isinstance(one, str) else one[0] for one in module.heard]
    window = ["backward", "backward", "clip", "step", "zero", "scheduler"]
    assert kinds == [*window, *window[1:]]  # the last window has one micro-batch
    assert [one[1:3] for one in module.heard if one[0] == "step"] == [(0, 1), (0, 2)]
    assert ("clip", 0.1, "norm") in module.heard and ("zero", 0, 2) in module.heard
    assert all(one[3] == 0.9 and one[4] > 0 for one in module.heard if one[0] == "step")


def test_a_step_that_is_not_made_leaves_the_weights() -> None:
    """A script that leaves out bad steps would make them."""

    class EverySecond(Classifier):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            optimizer_closure()
            if batch_idx % 2:
                optimizer.step()
            self.after = getattr(self, "after", [])
            self.after.append(weights(self))

    module, trainer = fit(EverySecond(), loader(16))
    assert [are_equal(a, b) for a, b in zip(module.after, module.after[1:], strict=False)] == [False, True, False]
    assert trainer.global_step == 4 and not trainer.skipped_steps


def test_a_scheduler_gets_the_value_that_it_monitors() -> None:
    """A schedule of one's own could not follow the validation."""

    class Plateau(Noted):
        plateau = True

    module, trainer = fit(Plateau(), loader(8), loader(8), num_sanity_val_steps=0)
    value = float(trainer.callback_metrics["val_loss"])
    assert [one for one in module.heard if one[0] == "scheduler"] == [("scheduler", value)]


def test_gradients_are_clipped_though_no_value_is_given() -> None:
    """Clipping of one's own would need an argument that says something else."""

    class Clips(Classifier):
        def configure_gradient_clipping(self, optimizer: Any, *limits: Any) -> None:
            seen.append(limits)
            torch.nn.utils.clip_grad_norm_(self.parameters(), 1e-3)

    seen: list[Any] = []
    clipped, usual = fit(Clips())[0], fit(Classifier(), gradient_clip_val=1e-3)[0]
    assert are_equal(weights(clipped), weights(usual)) and seen[0] == (None, "norm")


def test_in_manual_optimisation_backward_alone_is_called() -> None:
    """A step would be overridden, and nobody call it."""

    class Manual(Classifier):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self.loss_of(batch), retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()

        def backward(self, loss: Any, **options: Any) -> None:
            seen.append(options)
            loss.backward(**options)

    seen: list[Any] = []
    assert are_equal(weights(fit(Manual())[0]), weights(fit(Classifier())[0]))
    assert seen == [{"retain_graph": True}] * 6
    for name in ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping"):
        with pytest.raises(HookError, match=name) as caught:
            fit(type("Mine", (Manual,), {name: lambda self, *args: None})())
        assert caught.value.code == "unknown-hook"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("backward", lambda self, loss, optimizer, optimizer_idx: None),
        ("optimizer_step", lambda self, a, b, c, optimizer_idx, closure, on_tpu, using_lbfgs: None),
        ("lr_scheduler_step", lambda self, scheduler, optimizer_idx, metric: None),
    ],
)
def test_the_arguments_of_versions_long_gone_are_refused(name: str, method: Any) -> None:
    """The first step would end with a TypeError that names our code."""
    with pytest.raises(ConfigError, match=f"Mine.{name}.* cannot be called with") as caught:
        fit(type("Mine", (Classifier,), {name: method})())
    assert caught.value.code == "step-signature"


def test_who_overrides_nothing_pays_nothing() -> None:
    """Each step of all runs would make a call more for the few that override it."""
    seen: list[Any] = []

    class Look(Classifier):
        def on_train_start(self) -> None:
            loop = self.trainer.run.loop
            seen.append((loop.make_steps, loop.job.strategy.own_backward, loop.job.own_clip, loop.job.clips))
            seen.append((loop.hooks.on_before_backward, loop.hooks.on_train_batch_start, loop.loader.move))

    _, trainer = fit(Look())
    assert seen == [(trainer.strategy.step, None, None, False), ((), (), None)]
    fit(Noted())
    assert trainer.strategy.own_backward is None


def test_ranks_make_the_steps_of_one_process(ranks: Any) -> None:
    """A backward of one's own would leave out the sync."""
    alone = train_noted(8)
    for result in ranks.run(train_noted, 4, world=2):
        assert max((result[name] - alone[name]).abs().max().item() for name in alone) < 1e-10


def train_noted(batch_size: int) -> dict[str, Any]:
    """In each rank."""
    world = 8 // batch_size
    options = {**QUIET, **OPTIONS, "devices": world, "strategy": "ddp" if world > 1 else "auto"}
    trainer, module = Trainer(**options), Noted()
    trainer.fit(module, loader(48, batch_size=batch_size))
    return weights(module)


@pytest.mark.filterwarnings("ignore:strategy='dp'")
@pytest.mark.parametrize("strategy", ["auto", "dp", "ddp", "fsdp", LocalSGD(2), DiLoCo(2)], ids=str)
def test_every_strategy_lets_a_module_run_backward(strategy: Any) -> None:
    """It would be overridden, and not called, under some of them."""
    module, trainer = fit(Noted(), loader(8), strategy=strategy)
    trainer._fabric.close()
    assert module.heard.count("backward") == 2
