"""A training that can be told to end anywhere, and what is left of it: run by tests in ranks, and as a program.

python program.py ROOT [CKPT] [--hold]
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import drivetrain
from drivetrain.testing.fixtures import make_dataset, make_mlp

NUM_STEPS = 16


class Net(drivetrain.Module):
    """Dropout, AdamW and a schedule: everything has a memory.

    Args:
        root: A file for each rank that has begun its third step is put there.
        step_s: How long a step takes.
        told: By rank: at which batch it sends itself SIGTERM, and how much later.
    """

    def __init__(self, root: Path, *, step_s: float = 0.0, told: Any = None) -> None:
        super().__init__()
        self.net = make_mlp(dropout=0.3)
        self.root, self.step_s, self.told = root, step_s, told or {}
        self.timer: threading.Timer | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (self.global_step == 2 and self.step_s) or self.step_s > 1:
            (self.root / f"at_{self.global_rank}").write_text(str(os.getpid()))
        number, later_s = self.told.get(self.global_rank, (-1, 0.0))
        if self.trainer.micro_step == number:
            if later_s:
                self.timer = threading.Timer(later_s, os.kill, (os.getpid(), signal.SIGTERM))
                self.timer.start()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self.step_s)
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]) + torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20), "interval": "step"}
        ]


def train(
    root: Path, ckpt_path: Any = None, *, devices: int, step_s: float = 0.0, told: Any = None, callbacks: Any = ()
) -> Any:
    """Train; the trainer and a digest of all that was trained."""
    drivetrain.seed_everything(7, verbose=False)
    model = Net(root, step_s=step_s, told=told)
    trainer = drivetrain.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=2, logger=False,
        enable_checkpointing=any(isinstance(one, drivetrain.ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        accumulate_grad_batches=2, default_root_dir=root, callbacks=list(callbacks),
    )  # fmt: skip
    batch_size = 8 // devices
    try:
        trainer.fit(
            model, DataLoader(make_dataset(NUM_STEPS * 8), batch_size=batch_size, shuffle=True),
            DataLoader(make_dataset(20), batch_size=batch_size), ckpt_path=ckpt_path,
        )  # fmt: skip
    finally:
        if model.timer is not None:
            model.timer.join()
    return trainer, digest(trainer, model)


def digest(trainer: Any, model: Any) -> str:
    """Weights, the state of the optimizer, and the last validation."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    for state in trainer.optimizers[0].state_dict()["state"].values():
        for value in state.values():
            found.update(value.numpy().tobytes())
    found.update(repr(float(trainer.callback_metrics["val_loss"])).encode())
    return f"{trainer.global_step} {found.hexdigest()}"


def main() -> None:
    """As a program."""
    words = [word for word in sys.argv[1:] if word != "--hold"]
    root = Path(words[0])
    step_s = 60.0 if "--hold" in sys.argv else 0.02
    trainer, found = train(root, words[1] if len(words) > 1 else None, devices=2, step_s=step_s)
    trainer.print(found)
