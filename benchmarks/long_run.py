"""What a process uses over very many steps: memory, open files and threads, at ten marks.

python -m benchmarks.long_run [--steps 1000000] [--out FILE.md]

A linear layer of 4 features on batches of 2 from a `DataLoader` without workers, epochs of 10,000 steps: once with
nothing around it, once with one value logged for each step to a CSV file, and a checkpoint for each epoch. Each in a
process of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.child import answer
from benchmarks.rounds import run_child, say
from benchmarks.table import give_out, markdown, section

EPOCH_STEPS = 10_000
NUM_MARKS = 10
KINDS = {"bare": "Trainer, bare", "logging": "Trainer, one log, checkpoints"}


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    if asked.child:
        answer(lambda: measure(asked.child, asked.steps))
        return ""
    rows = []
    for kind, label in KINDS.items():
        command = [sys.executable, "-m", "benchmarks.long_run", *given, "--child", kind]
        reading = run_child(command, timeout_s=3600)
        say(f"long_run: {label} done")
        marks = reading["marks"]
        first, last = marks[0], marks[-1]
        memory = ", ".join(f"{mark['memory_mb']:.1f}" for mark in marks)
        rows.append(
            [
                label,
                memory,
                f"{100 * (last['memory_mb'] / first['memory_mb'] - 1):+.2f} %",
                f"{first['files']} / {last['files']}",
                f"{first['threads']} / {last['threads']}",
            ]
        )
    header = ("run", "MB of memory at each mark", "last over first", "open files, first / last", "threads")
    notes = [f"{asked.steps} steps; a mark after each tenth of them."]
    text = section("Long runs", [markdown(header, rows)], notes, module="benchmarks.long_run", arguments=given)
    give_out(text, asked.out)
    return text


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--child", choices=tuple(KINDS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def usage() -> dict[str, float]:
    """What this process uses now."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    files = len(list(Path("/proc/self/fd").iterdir()))
    return {"memory_mb": kilobytes / 1024, "files": files, "threads": threading.active_count()}


def measure(kind: str, num_steps: int) -> dict[str, Any]:
    """One run, in this process."""
    from drivetrain import Callback, CSVLogger, ModelCheckpoint, Module, Trainer

    torch.set_num_threads(1)
    marks: list[dict[str, float]] = []

    class Linear(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.net(batch[0]).square().mean()
            if kind == "logging":
                self.log("loss", loss, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Marks(Callback):
        def on_step_end(self, trainer: Any, module: Any) -> None:
            if trainer.global_step % (num_steps // NUM_MARKS) == 0:
                marks.append(usage())

    with tempfile.TemporaryDirectory(prefix="drivetrain-benchmark-") as directory:
        is_bare = kind == "bare"
        callbacks: list[Any] = [Marks()] + ([] if is_bare else [ModelCheckpoint(directory, save_top_k=1)])
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=-1, max_steps=num_steps, default_root_dir=directory,
            logger=False if is_bare else CSVLogger(directory), enable_checkpointing=not is_bare, callbacks=callbacks,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        data = TensorDataset(torch.randn(2 * min(EPOCH_STEPS, num_steps), 4))
        trainer.fit(Linear(), DataLoader(data, batch_size=2, shuffle=True))
    return {"marks": marks}


if __name__ == "__main__":
    main()
