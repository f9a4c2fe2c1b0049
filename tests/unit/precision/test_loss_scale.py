"""The loss scale and several optimizers: a scale that moves must not change anybody's gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import drivetrain
from drivetrain.testing.fixtures import make_dataset, make_mlp

DATA = make_dataset(32)
SCALER = {"scale": 64.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1, "_growth_tracker": 0}


def two_models() -> Any:
    """Two models and their optimizers under loss scaling whose scale grows with each step."""
    fabric = drivetrain.Fabric(accelerator="cpu", precision="16-mixed")
    fabric.launch()
    scaler = fabric.strategy.scaler
    assert scaler is not None
    scaler.load_state_dict(SCALER)
    models, optimizers = [], []
    for seed in (1, 2):
        module = make_mlp(seed=seed).float()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1.0))
        models.append(model)
        optimizers.append(optimizer)
    return fabric, models, optimizers


def loss_of(model: Any, start: int, size: int = 8) -> torch.Tensor:
    x, y = DATA[start : start + size]
    return functional.cross_entropy(model(x.float()), y)


def trained_alone(seed: int, batches: list[int], size: int = 8) -> list[torch.Tensor]:
    """Plain SGD on full batches, in float16 where the precision has it."""
    model = make_mlp(seed=seed).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for start in batches:
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, start, size)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def assert_close(model: Any, expected: list[torch.Tensor]) -> None:
    for own, one in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(own, one, rtol=2e-2, atol=2e-3)


def test_two_optimizers_that_step_in_turn_both_step_on_their_true_gradients() -> None:
    """The scale would move with the first step, and the second gradient be wrong by that factor."""
    fabric, models, optimizers = two_models()
    for start in (0, 8):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            fabric.backward(loss_of(model, start), model)
        for optimizer in optimizers:
            assert optimizer.step()
    for seed, model in zip((1, 2), models, strict=True):
        assert_close(model, trained_alone(seed, [0, 8]))
    fabric.strategy.loss_scale.update()
    assert fabric.strategy.scaler.get_scale() == 256.0
    fabric.close()


def test_a_long_window_keeps_its_scale_while_short_ones_step() -> None:
    """Its micro-batches would be summed under different scales."""
    fabric, models, optimizers = two_models()
    scaler = fabric.strategy.scaler
    assert scaler is not None
    scales = []
    batches = [DATA[start : start + 4] for start in range(0, 32, 4)]
    short = iter(fabric.windows(batches, models[1], optimizers[1], size=1))
    for window in fabric.windows(batches, models[0], optimizers[0], size=4):
        for x, y in window:
            window.backward(functional.cross_entropy(models[0](x.float()), y))
            inner = next(short)
            for x, y in inner:
                inner.backward(functional.cross_entropy(models[1](x.float()), y))
            scales.append(scaler.get_scale())
    assert scales == [64.0] * 4 + [128.0] * 4
    assert_close(models[0], trained_alone(1, [0, 16], 16))
    assert_close(models[1], trained_alone(2, list(range(0, 32, 4)), 4))
    fabric.close()


def test_an_overflow_beside_an_open_window_lowers_the_scale_when_it_closes() -> None:
    """The overflow would be forgotten, and happen again in each step from then on."""
    fabric, models, optimizers = two_models()
    scaler = fabric.strategy.scaler
    assert scaler is not None
    window = next(iter(fabric.windows([DATA[0:4], DATA[4:8]], models[0], optimizers[0], size=2)))
    before = [p.detach().clone() for p in models[1].parameters()]
    for index, (x, y) in enumerate(window):
        window.backward(functional.cross_entropy(models[0](x.float()), y))
        if index == 0:
            fabric.backward(loss_of(models[1], 0) * 1e38, models[1])
            assert optimizers[1].step() is False
    assert scaler.get_scale() == 32.0
    assert all(torch.equal(a, b) for a, b in zip(before, models[1].parameters(), strict=True))
    assert_close(models[0], trained_alone(1, [0]))
    fabric.close()


def test_a_checkpoint_holds_the_scale_after_its_last_step(tmp_path: Any) -> None:
    """A resumed run would scale its first step as the last one before."""

    class Model(drivetrain.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_mlp().float()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(batch[0].float()), batch[1])

        def on_fit_start(self) -> None:
            self.trainer.strategy.scaler.load_state_dict(SCALER)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = drivetrain.Trainer(
        accelerator="cpu", precision="16-mixed", max_steps=3, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(DATA, batch_size=8))
    trainer.save_checkpoint(tmp_path / "last")
    state = trainer._fabric.load(tmp_path / "last")
    assert state["trainer"]["scaler"]["scale"] == 512.0
    trainer._fabric.close()
