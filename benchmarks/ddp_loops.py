"""The training of `overhead_loops` on 2 DDP ranks, written once for each peer. Run under torchrun, it measures one.

python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.ddp_loops PEER --steps N
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.overhead_loops import OFF, measure_peer, train_with
from benchmarks.training_model import BATCH_SIZE, Cycle, StepClock, loss_of, make_model, make_optimizer
from benchmarks.two_ranks import NUM_RANKS


def samples_of(num_steps: int) -> Cycle:
    """The samples of all ranks for so many steps."""
    return Cycle(NUM_RANKS * num_steps * BATCH_SIZE)


def loss_after(module: torch.nn.Module) -> float:
    """The loss of the trained module on stored samples: ranks see different ones in a step, and end with one module."""
    x, y = next(iter(DataLoader(Cycle(BATCH_SIZE), batch_size=BATCH_SIZE)))
    with torch.no_grad():
        return float(loss_of(module(x), y))


def raw(num_steps: int, clock: StepClock) -> float:
    """Hand-written DDP."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    samples = samples_of(num_steps)
    sampler: DistributedSampler[Any] = DistributedSampler(samples, shuffle=False)
    for x, y in DataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler):
        clock.tick()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    return loss_after(model.module)


def drivetrain_loop(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Fabric`: the hand-written loop, each line through the toolkit."""
    import drivetrain

    fabric = drivetrain.Fabric(accelerator="cpu", devices=NUM_RANKS, strategy="ddp")
    fabric.launch()
    net = make_model()
    model, optimizer = fabric.setup(net, make_optimizer(net))
    loader = DataLoader(samples_of(num_steps), batch_size=BATCH_SIZE)
    for x, y in fabric.setup_dataloaders(loader):
        clock.tick()
        loss = loss_of(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    fabric.close()
    return loss_after(net)


def _trained(library: str, num_steps: int, clock: StepClock, **logged: Any) -> float:
    loader = DataLoader(samples_of(num_steps), batch_size=BATCH_SIZE)
    module = train_with(library, loader, clock, **logged, devices=NUM_RANKS, strategy="ddp", **OFF)
    return loss_after(module.net)


def drivetrain_bare(num_steps: int, clock: StepClock) -> float:
    """drivetrain's `Trainer`, everything switched off."""
    return _trained("drivetrain", num_steps, clock)


def drivetrain_synced(num_steps: int, clock: StepClock) -> float:
    """Likewise, with one value a step that is reduced over ranks."""
    return _trained("drivetrain", num_steps, clock, names=["train_loss"], log={"sync_dist": True})


def lightning_bare(num_steps: int, clock: StepClock) -> float:
    """Lightning's `Trainer`, everything switched off."""
    return _trained("lightning", num_steps, clock)


def lightning_synced(num_steps: int, clock: StepClock) -> float:
    """Likewise, with one value a step that is reduced over ranks."""
    return _trained("lightning", num_steps, clock, names=["train_loss"], log={"sync_dist": True})


LOOPS: dict[str, Callable[[int, StepClock], float]] = {
    loop.__name__: loop
    for loop in (raw, drivetrain_loop, drivetrain_bare, drivetrain_synced, lightning_bare, lightning_synced)
}

if __name__ == "__main__":
    measure_peer(LOOPS, answers=os.environ.get("RANK") == "0")
