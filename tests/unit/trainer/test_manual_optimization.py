"""Manual optimisation in one process: the familiar protocol, what is counted, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import drivetrain
from drivetrain import Callback
from tests.unit.trainer.runs import QUIET, Classifier, ListLogger, are_equal, fit, loader, weights


class ByHand(Classifier):
    """Steps by itself, at every `every`-th batch."""

    automatic_optimization = False

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = self.loss_of(batch)
        self.log("loss", loss)
        self.manual_backward(loss / self.every)
        if (batch_idx + 1) % self.every == 0:
            optimizer.step()
            optimizer.zero_grad()


class InWindows(ByHand):
    """The same, with a window."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        with self.window(self.optimizers(), size=self.every) as window:
            loss = self.loss_of(batch)
            self.log("loss", loss)
            window.backward(loss)


def assert_close(left: Classifier, right: Classifier) -> None:
    for own, other in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [ByHand, InWindows])
@pytest.mark.parametrize("every", [1, 3])
def test_steps_by_hand_are_those_of_the_loop(kind: type[ByHand], every: int) -> None:
    """`automatic_optimization = False` would change the result, or the count of steps."""
    loggers = ListLogger(), ListLogger()
    automatic, trainer = fit(logger=loggers[0], accumulate_grad_batches=every, log_every_n_steps=1, max_epochs=2)
    module, other = fit(kind(every), logger=loggers[1], log_every_n_steps=1, max_epochs=2)
    assert_close(automatic, module)
    assert other.global_step == trainer.global_step == 12 // every
    assert other.micro_step == trainer.micro_step == 12
    assert [step for step, _ in loggers[1].of("loss")] == list(range(1, 12 // every + 1))


def test_a_window_that_is_not_full_steps_at_the_end_of_its_epoch() -> None:
    """Its gradients would leak into the next epoch, or be dropped."""
    automatic, trainer = fit(data=loader(20), accumulate_grad_batches=3, max_epochs=2)
    module, other = fit(InWindows(3), loader(20), max_epochs=2)
    assert_close(automatic, module)
    assert other.global_step == trainer.global_step == 4


def test_several_optimizers_that_step_in_one_batch_are_one_step() -> None:
    """`max_steps` and schedules would come to half of what was asked for."""

    class Two(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.loss_of(batch))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            layers = list(self.net.children())
            return [torch.optim.SGD(layers[0].parameters(), lr=0.1), torch.optim.SGD(layers[-1].parameters(), lr=0.1)]

    module, trainer = fit(Two(), max_steps=4, max_epochs=-1)
    assert trainer.global_step == module.count("train") + 4 == 4


def test_hooks_run_around_a_step_by_hand() -> None:
    """Gradient monitors and checkpoints would not hear of it."""
    heard: list[str] = []

    class Listens(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            heard.append("optimizer")

        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            heard.append("zero")

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            heard.append(f"batch {trainer.global_step}")

        def on_step_end(self, trainer: Any, pl_module: Any) -> None:
            heard.append(f"step {trainer.global_step}")

    fit(ByHand(2), loader(8), callbacks=[Listens()])
    assert heard == ["batch 0", "optimizer", "zero", "batch 1", "step 1"]


def test_a_closure_is_run_by_the_optimizer_that_wants_one() -> None:
    """LBFGS could not be used."""

    class Closure(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = self.loss_of(batch)
                self.manual_backward(loss)
                return loss

            before = self.loss_of(batch).item()
            assert optimizer.step(closure).item() == pytest.approx(before)
            assert self.loss_of(batch).item() < before

        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

    _, trainer = fit(Closure(), loader(8), max_epochs=1)
    assert trainer.global_step == 2


def test_clipping_by_hand_gives_the_norm_and_clips() -> None:
    """Gradients would stay as they were, or the norm after clipping be given."""
    norms: list[tuple[float, float]] = []

    class Clips(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self.loss_of(batch))
            norm = self.clip_gradients(optimizer, gradient_clip_val=0.01)
            after = torch.stack([p.grad.norm() for p in self.parameters() if p.grad is not None]).norm()
            norms.append((float(norm), float(after)))
            assert self.clip_gradients(optimizer, gradient_clip_val=0.001, gradient_clip_algorithm="value") is None
            assert max(float(p.grad.abs().max()) for p in self.parameters() if p.grad is not None) <= 0.001
            optimizer.step()
            optimizer.zero_grad()

    fit(Clips(), loader(8))
    assert all(before > 0.01 and after == pytest.approx(0.01, rel=1e-3) for before, after in norms) and len(norms) == 2


def test_toggling_leaves_gradients_to_one_optimizer_and_is_undone() -> None:
    """Frozen parameters would come back unfrozen, or the other optimizer's gradients be made."""

    class Toggles(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, _ = self.optimizers()
            with self.toggled_optimizer(first):
                self.manual_backward(self.loss_of(batch))
            layers = list(self.net.children())
            assert layers[0].weight.grad is not None and layers[-1].weight.grad is None
            assert [p.requires_grad for p in layers[0].parameters()] == [True, False]
            assert all(p.requires_grad for p in layers[-1].parameters())

        def configure_optimizers(self) -> Any:
            layers = list(self.net.children())
            layers[0].bias.requires_grad_(False)
            return [torch.optim.SGD(layers[0].parameters(), lr=0.1), torch.optim.SGD(layers[-1].parameters(), lr=0.1)]

    fit(Toggles(), loader(4))


@pytest.mark.parametrize(
    "options", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}, {"global_batch_size": 8}]
)
def test_arguments_that_the_loop_would_ignore_are_refused(options: dict[str, Any]) -> None:
    """A user would believe that gradients are clipped or accumulated."""
    with pytest.raises(drivetrain.ConfigError, match=f"{next(iter(options))}.*automatic_optimization=False"):
        fit(ByHand(), **options)


def test_the_tools_are_refused_in_automatic_optimisation_and_outside_of_a_run() -> None:
    """A backward of one's own beside the loop's would count twice."""

    class Both(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.manual_backward(self.loss_of(batch))

    with pytest.raises(drivetrain.ConfigError, match="manual_backward is for manual optimisation"):
        fit(Both())
    with pytest.raises(drivetrain.ConfigError, match="window is for manual optimisation"):
        ByHand().window(None)


def test_a_strange_optimizer_has_no_window() -> None:
    """Its parameters would be stepped without the run knowing of it."""

    class Strange(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.window(torch.optim.SGD(self.parameters(), lr=0.1))

    with pytest.raises(drivetrain.OptimizerError, match="not among the run's optimizers"):
        fit(Strange())


def test_misuse_of_a_window_is_said() -> None:
    """Gradients would be summed without a scale."""
    fabric = drivetrain.Fabric(accelerator="cpu")
    fabric.launch()
    net = torch.nn.Linear(2, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    window = fabric.window(optimizer)
    with pytest.raises(drivetrain.WindowError, match="outside of the window's block"):
        window.backward(model(torch.ones(1, 2)).sum(), weight=1)
    with pytest.raises(drivetrain.StepOutputError, match="no weight"), window:
        window.backward(model(torch.ones(1, 2)).sum())
    with pytest.raises(drivetrain.WindowError, match="inside of itself"), window, window:
        pass
    with pytest.raises(drivetrain.ConfigError, match="size=0"):
        fabric.window(optimizer, size=0)
    assert window.index == 0
    fabric.close()


def test_a_resumed_run_steps_by_hand_as_one_that_was_not_stopped(tmp_path: Any) -> None:
    """Optimizer state or the count of steps would be lost."""
    whole, _ = fit(ByHand(), max_epochs=2)
    _, trainer = fit(ByHand(), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "half")
    module, trainer = ByHand(), drivetrain.Trainer(**QUIET, max_epochs=2)
    trainer.fit(module, loader(), ckpt_path=tmp_path / "half")
    assert are_equal(weights(module), weights(whole)) and trainer.global_step == 12
