"""The same training, written once for each peer. Run as a program, it measures one of them.

python -m benchmarks.overhead_loops PEER --steps N
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.child import answer
from benchmarks.training_model import StepClock, loss_of, make_loader, make_model, make_optimizer

NUM_WARM = 200  # steps before the clock starts, as far as there are that many


def raw(num_steps: int, clock: StepClock) -> float:
    """Hand-written PyTorch."""
    model = make_model()
    optimizer = make_optimizer(model)
    for x, y in make_loader(num_steps):
        clock.tick()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def _fabric_loop(fabric: Any, num_steps: int, clock: StepClock) -> float:
    fabric.launch()
    model = make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    for x, y in fabric.setup_dataloaders(make_loader(num_steps)):
        clock.tick()
        loss = loss_of(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def drivetrain_loop(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Fabric`: the hand-written loop, each line through the toolkit."""
    import drivetrain

    return _fabric_loop(drivetrain.Fabric(accelerator="cpu", devices=1), num_steps, clock)


def drivetrain_windows(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Fabric.windows`, which steps and zeroes by itself."""
    import drivetrain

    fabric = drivetrain.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    for window in fabric.windows(fabric.setup_dataloaders(make_loader(num_steps)), model, optimizer):
        for x, y in window:
            clock.tick()
            loss = loss_of(model(x), y)
            window.backward(loss)
    return loss.item()


def lightning_fabric(num_steps: int, clock: StepClock) -> float:
    """Lightning's `Fabric`."""
    from lightning.fabric import Fabric

    return _fabric_loop(Fabric(accelerator="cpu", devices=1), num_steps, clock)


def accelerate(num_steps: int, clock: StepClock) -> float:
    """Accelerate, as its guide writes a loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model()
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), make_loader(num_steps))
    for x, y in loader:
        clock.tick()
        with accelerator.accumulate(model):
            loss = loss_of(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def train_with(
    library: str,
    loader: Any,
    clock: StepClock,
    *,
    names: Sequence[str] = (),
    log: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Train with a `Trainer`; both libraries speak the same protocol.

    Args:
        library: `"drivetrain"` or `"lightning"`.
        loader: One epoch.
        clock: Ticks in each step.
        names: Under which the loss is logged.
        log: How it is.
        options: Of the `Trainer`.

    Returns:
        The trained module, with its `last_loss`.
    """
    namespace = importlib.import_module("drivetrain" if library == "drivetrain" else "lightning.pytorch")
    module_class = namespace.Module if library == "drivetrain" else namespace.LightningModule

    class Classifier(module_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            clock.tick()
            x, y = batch
            loss = loss_of(self.net(x), y)
            for name in names:
                self.log(name, loss, **(log or {}))
            self.last_loss = loss.detach()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.net)

    module = Classifier()
    with tempfile.TemporaryDirectory() as directory:
        trainer = namespace.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=directory, **options)
        trainer.fit(module, loader)
    return module


def drivetrain_bare(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Trainer`, everything switched off."""
    return float(train_with("drivetrain", make_loader(num_steps), clock, devices=1, **OFF).last_loss)


def drivetrain_logging(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Trainer` as it comes, and one `self.log` a step."""
    return float(
        train_with(
            "drivetrain", make_loader(num_steps), clock, names=["train_loss"], log={"prog_bar": True}, devices=1
        ).last_loss
    )


def lightning_bare(num_steps: int, clock: StepClock) -> float:
    """Lightning's `Trainer`, everything switched off."""
    return float(train_with("lightning", make_loader(num_steps), clock, devices=1, **OFF).last_loss)


def lightning_logging(num_steps: int, clock: StepClock) -> float:
    """Lightning's `Trainer` as it comes, and one `self.log` a step."""
    return float(
        train_with(
            "lightning", make_loader(num_steps), clock, names=["train_loss"], log={"prog_bar": True}, devices=1
        ).last_loss
    )


LOOPS: dict[str, Callable[[int, StepClock], float]] = {
    loop.__name__: loop
    for loop in (
        raw, drivetrain_loop, drivetrain_windows, drivetrain_bare, drivetrain_logging, lightning_fabric, lightning_bare,
        lightning_logging, accelerate,
    )
}  # fmt: skip


def measure_peer(loops: Mapping[str, Callable[[int, StepClock], float]], *, answers: bool = True) -> None:
    """Measure the loop that the command line names, and print the reading.

    Args:
        loops: By name.
        answers: This process prints; on many ranks, one of them.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=loops)
    parser.add_argument("--steps", type=int, default=3000)
    asked = parser.parse_args()
    torch.set_num_threads(1)

    def measure() -> dict[str, float] | None:
        clock = StepClock(num_warm=min(NUM_WARM, asked.steps // 4))
        last_loss = loops[asked.peer](asked.steps, clock)
        return {**clock.readings(), "last_loss": last_loss} if answers else None

    answer(measure)


if __name__ == "__main__":
    measure_peer(LOOPS)
