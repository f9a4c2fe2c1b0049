"""Windows of several micro-batches on two ranks, written once for each peer. Run under torchrun, it measures one.

python -m benchmarks.wire_loops PEER --steps N --window K --width W
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.child import answer
from benchmarks.two_ranks import NUM_RANKS
from benchmarks.wire_link import link_bytes

BATCH_SIZE = 4
NUM_CLASSES = 10
NUM_WARM = 2  # windows before counting: DDP rebuilds its buckets in the first


class Noise(Dataset[tuple[Tensor, int]]):
    """Random features, made anew from the index."""

    def __init__(self, num_samples: int, width: int) -> None:
        self._num_samples = num_samples
        self._width = width

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self._width, generator=generator), index % NUM_CLASSES


@dataclass
class Job:
    """Sizes of a measurement, and its counters: time and bytes from one window's beginning to another's."""

    num_steps: int
    window: int
    width: int
    _num_ticks: int = 0
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def tick(self) -> None:
        """A micro-batch begins. Called first thing in each of them, on each rank."""
        if self._num_ticks % self.window == 0:
            self._marks.append((time.perf_counter(), link_bytes()))
        self._num_ticks += 1

    def readings(self) -> dict[str, float]:
        """Means over the windows that count."""
        (begin, first), (end, last) = self._marks[NUM_WARM], self._marks[-1]
        num_windows = len(self._marks) - 1 - NUM_WARM
        return {
            "ms_per_step": (end - begin) / num_windows * 1e3,
            "megabytes_per_step": (last - first) / num_windows / 1e6,
        }

    def count_whole_rounds(self, sync_every: int) -> None:
        """Count a multiple of `sync_every` windows, so that the syncs in them are what they are in a long run."""
        self.num_steps = -(-self.num_steps // sync_every) * sync_every

    def make_loader(self, *, is_sharded: bool = False) -> DataLoader[Any]:
        """All micro-batches of the measurement; hand-written loops shard by themselves."""
        num_windows = self.num_steps + NUM_WARM + 1
        data = Noise(BATCH_SIZE * self.window * num_windows * NUM_RANKS, self.width)
        sampler: DistributedSampler[Any] | None = None
        if is_sharded:
            sampler = DistributedSampler(data, shuffle=False)
        return DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)

    def make_model(self) -> nn.Sequential:
        """A perceptron with three square layers; the same weights on both ranks."""
        torch.manual_seed(2)
        layers = [layer for _ in range(3) for layer in (nn.Linear(self.width, self.width), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(self.width, NUM_CLASSES))


def make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """SGD over all parameters."""
    return torch.optim.SGD(module.parameters(), lr=0.01)


def _hand_written(job: Job, *, defers: bool) -> float:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(job.make_model())
    optimizer = make_optimizer(model)
    for index, (x, y) in enumerate(job.make_loader(is_sharded=True), start=1):
        job.tick()
        is_last = index % job.window == 0
        with model.no_sync() if defers and not is_last else nullcontext():
            loss = functional.cross_entropy(model(x), y)
            (loss / job.window).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def every_micro_batch(job: Job) -> float:
    """Hand-written DDP that syncs in every micro-batch."""
    return _hand_written(job, defers=False)


def no_sync(job: Job) -> float:
    """Hand-written DDP with `no_sync` in all but the last micro-batch."""
    return _hand_written(job, defers=True)


def _fabric_loop(fabric: Any, job: Job) -> float:
    fabric.launch()
    model = job.make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    for index, (x, y) in enumerate(fabric.setup_dataloaders(job.make_loader()), start=1):
        job.tick()
        is_last = index % job.window == 0
        with fabric.no_backward_sync(model, enabled=not is_last):
            loss = functional.cross_entropy(model(x), y)
            fabric.backward(loss / job.window)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def drivetrain_loop(job: Job) -> float:
    """drivetrain's `Fabric` with `no_backward_sync`."""
    import drivetrain

    return _fabric_loop(drivetrain.Fabric(accelerator="cpu", devices=NUM_RANKS, strategy="ddp"), job)


def _windows(job: Job, strategy: Any) -> float:
    import drivetrain

    fabric = drivetrain.Fabric(accelerator="cpu", devices=NUM_RANKS, strategy=strategy)
    fabric.launch()
    model = job.make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    loader = fabric.setup_dataloaders(job.make_loader())
    for window in fabric.windows(loader, model, optimizer, size=job.window):
        for x, y in window:
            job.tick()
            loss = functional.cross_entropy(model(x), y)
            window.backward(loss)
    return loss.item()


def drivetrain_windows(job: Job) -> float:
    """drivetrain's `Fabric.windows`."""
    return _windows(job, "ddp")


def drivetrain_bf16(job: Job) -> float:
    """The same with gradients sent as bfloat16."""
    import drivetrain

    return _windows(job, drivetrain.DDP(comm_hook="bf16"))


def drivetrain_powersgd(job: Job) -> float:
    """The same with gradients sent as factors of rank 1."""
    import drivetrain

    return _windows(job, drivetrain.DDP(comm_hook="powersgd"))


def drivetrain_local_sgd(job: Job) -> float:
    """The same with parameters averaged every 8 steps."""
    import drivetrain

    job.count_whole_rounds(8)
    return _windows(job, drivetrain.LocalSGD(8))


def drivetrain_diloco(job: Job) -> float:
    """The same with an outer step every 50 steps."""
    import drivetrain

    job.count_whole_rounds(50)
    return _windows(job, drivetrain.DiLoCo(50))


def lightning_fabric(job: Job) -> float:
    """Lightning's `Fabric` with `no_backward_sync`."""
    from lightning.fabric import Fabric

    return _fabric_loop(Fabric(accelerator="cpu", devices=NUM_RANKS, strategy="ddp"), job)


def accelerate(job: Job) -> float:
    """Accelerate with `accumulate`."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.window)
    model = job.make_model()
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), job.make_loader())
    for x, y in loader:
        job.tick()
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def _trained(library: Any, module_class: type, job: Job) -> float:
    class Classifier(module_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = job.make_model()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            job.tick()
            x, y = batch
            loss = functional.cross_entropy(self.net(x), y)
            self.last_loss = loss.detach()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.net)

    module = Classifier()
    with tempfile.TemporaryDirectory() as directory:
        library.Trainer(
            max_epochs=1, accelerator="cpu", devices=NUM_RANKS, strategy="ddp", accumulate_grad_batches=job.window,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=directory,
        ).fit(module, job.make_loader())  # fmt: skip
    return float(module.last_loss)


def drivetrain_trainer(job: Job) -> float:
    """drivetrain's `Trainer` with `accumulate_grad_batches`."""
    import drivetrain

    return _trained(drivetrain, drivetrain.Module, job)


def lightning_trainer(job: Job) -> float:
    """Lightning's `Trainer` with `accumulate_grad_batches`."""
    library = importlib.import_module("lightning.pytorch")
    return _trained(library, library.LightningModule, job)


LOOPS: dict[str, Callable[[Job], float]] = {
    loop.__name__: loop
    for loop in (
        no_sync, every_micro_batch, drivetrain_loop, drivetrain_windows, drivetrain_trainer, drivetrain_bf16,
        drivetrain_powersgd, drivetrain_local_sgd, drivetrain_diloco, lightning_fabric, lightning_trainer, accelerate,
    )
}  # fmt: skip


def main() -> None:
    """Measure one peer on this rank; rank 0 prints the reading."""
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    asked = parser.parse_args()
    torch.set_num_threads(1)

    def measure() -> dict[str, float] | None:
        job = Job(asked.steps, asked.window, asked.width)
        last_loss = LOOPS[asked.peer](job)
        if dist.is_initialized():
            dist.destroy_process_group()
        return {**job.readings(), "last_loss": last_loss} if os.environ["RANK"] == "0" else None

    answer(measure)


if __name__ == "__main__":
    main()
