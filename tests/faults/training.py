"""The run to which faults are done: it notes every sample and the digest of all state after every step.

Each rank appends lines of JSON to a file of its own, and syncs it, before it goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from drivetrain import (
    DDP,
    Callback,
    CSVLogger,
    ModelCheckpoint,
    Module,
    SingleDevice,
    Strategy,
    Trainer,
    seed_everything,
)
from drivetrain.base.rng import capture_rng
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from tests.faults.fault import FaultInjector

NUM_HIDDEN = 150  # about 2000 weights


@dataclass(frozen=True)
class Job:
    """How a run is made.

    Attributes:
        directory: Where checkpoints and notes go.
        devices: Ranks; 0 for those that a launcher has started.
        max_steps: Optimizer steps.
        max_restarts: Of the Trainer.
        faults: Lines.
        resume: Of `fit`.
        is_random: Dropout and a batch norm: the same bits only on as many ranks.
        window: Arguments of the Trainer that say how large windows are.
        save_every: Optimizer steps between checkpoints.
        save: Further arguments of the `ModelCheckpoint`.
        is_logged: A row of each step goes to `logs/`.
        save_every_s: Seconds between them instead; they are written beside training.
        start: How ranks are started; `"script"` where this file is run.
        seed: Of the run.
        pause_s: After each step, as long as there is a file `slow`.
        timeout_s: Of the process group.
    """

    directory: str
    devices: int = 2
    max_steps: int = 300
    max_restarts: int = 0
    faults: tuple[str, ...] = ()
    resume: str | None = None
    is_random: bool = True
    window: dict[str, int] = field(default_factory=lambda: {"accumulate_grad_batches": 3})
    save_every: int = 5
    save: dict[str, Any] = field(default_factory=dict)
    is_logged: bool = False
    save_every_s: float | None = None
    start: str = "fork"
    seed: int = 1
    pause_s: float = 0.0
    timeout_s: float | None = None


class Notes:
    """Lines of one rank, on the disk when `write` returns."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.about: dict[str, Any] = {}
        self._file: int | None = None

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self._file is None:
            path = self.directory / f"notes_{self.about['rank']}.jsonl"
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        text = json.dumps({"kind": kind, "time": time.time(), **self.about, **values})
        os.write(self._file, f"{text}\n".encode())
        os.fsync(self._file)


class Net(Module):
    """A float64 network that notes which samples it sees."""

    def __init__(self, *, is_random: bool, notes: Notes) -> None:
        super().__init__()
        self.net = make_mlp(num_hidden=NUM_HIDDEN, dropout=0.1 if is_random else 0.0, has_batch_norm=is_random)
        self.notes = notes

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, targets, numbers = batch
        loss = functional.cross_entropy(self.net(features), targets)
        if self.trainer.loggers:
            self.log("loss", loss)
        self.notes.write(
            "samples", epoch=self.current_epoch, step=self.global_step, ids=numbers.tolist(),
            loss=loss.item() * len(targets),
        )  # fmt: skip
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Digests(Callback):
    """Notes where an attempt begins, and what the state is after each step."""

    def __init__(self, notes: Notes, pause_s: float) -> None:
        self.notes = notes
        self.pause_s = pause_s

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        cluster = trainer.strategy.cluster
        # torchrun counts restarts on each machine by itself, but each round has a port of its own.
        run = f"{cluster.run_id}:{cluster.main_port}" if cluster.is_launched else str(os.getpid())
        attempt = cluster.restart_count if cluster.launched_by == "drivetrain" else 0
        self.notes.about = {"rank": cluster.rank, "world": cluster.world_size, "attempt": attempt, "run": run}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.notes.write("begin", step=trainer.global_step, epoch=trainer.current_epoch, pid=os.getpid())

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.notes.write("step", step=trainer.global_step, digest=digest_of(state_of(trainer, pl_module)))

        if self.pause_s and (self.notes.directory / "slow").exists():
            time.sleep(self.pause_s)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.notes.write("end", step=trainer.global_step)
        torch.save(pl_module.net.state_dict(), self.notes.directory / f"weights_{trainer.global_rank}.pt")


def state_of(trainer: Any, module: Module) -> dict[str, Any]:
    """Weights, optimizers, schedulers and random state of this rank."""
    return {
        "weights": module.net.state_dict(),
        "optimizers": [one.state_dict() for one in trainer.optimizers],
        "schedulers": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs],
        "rng": capture_rng(),
    }


def digest_of(state: Any) -> str:
    """SHA-256 of nested plain data and tensors."""
    digest = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                take(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                take(one)
        else:
            digest.update(repr(value).encode())

    take(state)
    return digest.hexdigest()


def train(job: Job, callbacks: Sequence[Callback] = ()) -> None:
    """The run, in the process that launches it or in a rank of it."""
    directory = Path(job.directory)
    seed_everything(job.seed, verbose=False)
    notes = Notes(directory)
    strategy: Strategy | str = "auto" if job.devices == 0 else SingleDevice()
    if job.devices > 1:
        strategy = DDP(start=job.start)  # type: ignore[arg-type]
    elif job.timeout_s is not None:
        strategy = DDP(timeout_s=job.timeout_s)
    interval: dict[str, Any] = {"every_n_train_steps": job.save_every}
    if job.save_every_s is not None:
        interval = {"every": timedelta(seconds=job.save_every_s), "save_async": True}
    trainer = Trainer(
        accelerator="cpu", devices=job.devices or "auto", strategy=strategy, max_steps=job.max_steps,
        logger=CSVLogger(directory / "logs", flush_logs_every_n_steps=1) if job.is_logged else False,
        log_every_n_steps=1, default_root_dir=directory, enable_progress_bar=False, enable_model_summary=False,
        max_restarts=job.max_restarts, **job.window,
        callbacks=[
            Digests(notes, job.pause_s), FaultInjector(job.faults, notes), *callbacks,
            ModelCheckpoint(directory / "kept", "{step}", save_top_k=3, **interval, **job.save),
        ],
    )  # fmt: skip
    loader = DataLoader(NumberedDataset(), batch_size=4, shuffle=True)
    trainer.fit(Net(is_random=job.is_random, notes=notes), loader, resume=job.resume)


if __name__ == "__main__":
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    train(Job(**{**values, "faults": tuple(values["faults"])}))


def as_text(job: Job) -> str:
    """What this file reads when it is run."""
    return json.dumps(asdict(job))
