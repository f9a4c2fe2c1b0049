"""Number formats on several ranks: overflow is everybody's, and clipping sees the true gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import drivetrain
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.ranks.open_fabric import gradients, largest_difference, open_fabric, sgd, weights

DATA = make_dataset(64)


class Overflows(drivetrain.Module):
    """In one optimizer step one rank's loss overflows, in the first one some say nothing; notes what follows."""

    def __init__(self, *, rank: int = 1, step: int = 2, silent: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.net = make_mlp().float()
        self.place = (rank, step)
        self.silent = silent
        self.scales: list[float] = []
        self.states: list[dict[str, torch.Tensor]] = []
        self.norms: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = functional.cross_entropy(self.net(x.float()), y)
        if self.place == (self.global_rank, self.global_step):
            loss = loss * 1e38
        return None if self.global_rank in self.silent and self.global_step == 0 else loss

    def on_before_zero_grad(self, optimizer: Any) -> None:
        parts = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.norms.append(float(torch.stack(parts).norm()) if parts else 0.0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step > len(self.states):
            scaler = self.trainer.strategy.scaler
            self.scales.append(scaler.get_scale() if scaler is not None else 1.0)
            self.states.append(weights(self))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fit(module: drivetrain.Module, **options: Any) -> None:
    """One epoch of five optimizer steps of two micro-batches."""
    trainer = drivetrain.Trainer(
        accelerator="cpu", strategy="ddp", max_epochs=1, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Subset(DATA, range(40)), batch_size=2))
    trainer._fabric.close()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Any, clip: float | None) -> None:
    """One rank would step and the other not, or scales would differ from then on."""

    def in_rank() -> Any:
        module = Overflows()
        fit(module, precision="16-mixed", gradient_clip_val=clip)
        return module.scales, module.states

    (scales, states), (other_scales, other_states) = ranks.run(in_rank)
    full = 2.0**16
    assert scales == other_scales == [full, full, full / 2, full / 2, full / 2]
    for own, other in zip(states, other_states, strict=True):
        assert largest_difference(own, other) == 0
    moved = [largest_difference(a, b) > 0 for a, b in itertools.pairwise(states)]
    assert moved == [True, False, True, True]


@pytest.mark.parametrize("silent", [(0, 1), (1,)], ids=["on all ranks", "on one rank"])
def test_a_first_window_without_a_loss_leaves_the_loss_scaling_usable(ranks: Any, silent: tuple[int, ...]) -> None:
    """The next window's gradients would be refused, or ranks would differ in what they step on."""

    def in_rank(silent: tuple[int, ...]) -> Any:
        module = Overflows(step=-1, silent=silent)
        if len(silent) == 2:
            with pytest.warns(UserWarning, match="no weight on any rank"):
                fit(module, precision="16-mixed")
        else:
            fit(module, precision="16-mixed")
        return module.scales, module.states

    (scales, states), (other_scales, other_states) = ranks.run(in_rank, silent)
    assert scales == other_scales == [2.0**16] * 5
    for own, other in zip(states, other_states, strict=True):
        assert largest_difference(own, other) == 0
    assert all(largest_difference(a, b) > 0 for a, b in itertools.pairwise(states))


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_clipping_sees_the_true_gradients(ranks: Any, precision: str) -> None:
    """Gradients scaled by 65536 would be clipped to next to nothing, or not at all after unscaling."""

    def in_rank(clip: float | None) -> Any:
        module = Overflows(step=-1)
        fit(module, precision=precision, gradient_clip_val=clip)
        return module.norms

    free = ranks.run(in_rank, None)[0]
    bound = min(free) / 2
    for norms in ranks.run(in_rank, bound):
        assert norms == pytest.approx([bound] * 5, rel=1e-4)
        assert max(norms) <= bound * (1 + 1e-6)
    for norms in ranks.run(in_rank, 1e3):
        assert norms == pytest.approx(free, rel=1e-4)


def test_clipping_by_hand_returns_the_norm_of_one_process_on_all_ranks(ranks: Any) -> None:
    """The norm of a scaled gradient, or of a rank's own, would be reported."""

    def in_rank() -> Any:
        with open_fabric(precision="16-mixed") as fabric:
            module = make_mlp().float()
            model, optimizer = fabric.setup(module, sgd(module))
            size = 8 // fabric.world_size
            x, y = DATA[fabric.global_rank * size : (fabric.global_rank + 1) * size]
            fabric.backward(functional.cross_entropy(model(x.float()), y) / 10)
            norm = fabric.clip_gradients(model, optimizer, max_norm=0.01)
            clipped = torch.stack([g.norm() for g in gradients(model).values() if g is not None]).norm()
            assert norm is not None
            return float(norm), float(clipped), bool(optimizer.step())

    alone, _, _ = in_rank()
    for norm, clipped, has_stepped in ranks.run(in_rank):
        assert norm == pytest.approx(alone, rel=2e-3)
        assert clipped == pytest.approx(0.01, rel=1e-4)
        assert has_stepped


@pytest.mark.parametrize(
    ("precision", "stored", "computed"),
    [
        ("64-true", torch.float64, torch.float64),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("16-mixed", torch.float32, torch.float16),
    ],
)
def test_every_format_trains_on_two_ranks(
    ranks: Any, precision: str, stored: torch.dtype, computed: torch.dtype
) -> None:
    """The model would be stored or computed in another format than was asked for, or ranks would drift apart."""

    class Noted(Overflows):
        def __init__(self) -> None:
            super().__init__(step=-1)
            self.computed: set[torch.dtype] = set()
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            # What the run hands over fits a model in its own format; a mixed one takes the data as they are.
            logits = self.net(x if x.dtype == self.net[0].weight.dtype else x.float())
            self.computed.add(logits.dtype)
            loss = functional.cross_entropy(logits, y)
            self.losses.append(loss.item())
            return loss

    def in_rank() -> Any:
        module = Noted()
        fit(module, precision=precision, max_steps=5)
        formats = {p.dtype for p in module.parameters()}
        return formats, module.computed, module.losses, module.states[-1]

    (formats, used, losses, own), (_, _, _, other) = ranks.run(in_rank)
    assert (formats, used) == ({stored}, {computed})
    assert len(losses) == 10 and all(loss < 10 for loss in losses)
    assert largest_difference(own, other) == 0


def test_a_scaled_window_that_uses_one_of_two_modules_steps_that_one(ranks: Any) -> None:
    """Generator and discriminator that take turns could not be trained in float16."""

    def in_rank() -> Any:
        with open_fabric(precision="16-mixed") as fabric:
            modules = [make_mlp(seed=seed).float() for seed in (1, 2)]
            models = [fabric.setup_module(module) for module in modules]
            before = [weights(module) for module in modules]
            moved = []
            for window in fabric.windows([DATA[0:2]] * 4, models, [sgd(module) for module in modules]):
                for x, y in window:
                    window.backward(functional.cross_entropy(models[window.start % 2](x.float()), y) / 10)
                moved.append([largest_difference(weights(m), old) > 0 for m, old in zip(modules, before, strict=True)])
                before = [weights(module) for module in modules]
            return moved, before

    (moved, own), (_, other) = ranks.run(in_rank)
    assert moved == [[True, False], [False, True]] * 2
    assert [largest_difference(a, b) for a, b in zip(own, other, strict=True)] == [0, 0]
