"""A stream that can be stopped and gone on with: the next byte of Python's own sources, read file by file.

The data set gives each rank, and each worker of it, its share, and knows where it is: a run that is stopped in the
middle goes on with the next piece of text, and ends with the very weights of a run that was not stopped. With
`--devices 2 --batch 16` a step takes the same pieces as with one rank.
"""

# run: --steps 30 --workers 1
# run: --steps 40 --devices 2 --batch 16

from __future__ import annotations

import argparse
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import drivetrain as dt

CONTEXT = 8


class Sources(IterableDataset):
    """Pieces of `CONTEXT + 32` bytes of the files of a folder, one after the other.

    Attributes:
        file: The file that is being read.
        piece: The next piece in it.
        number: Pieces since the beginning of the epoch, those of other ranks and workers included.
    """

    shards_itself = True

    def __init__(self, folder: Path, rank: int, num_ranks: int) -> None:
        self.files = sorted(folder.glob("*.py"))[:60]
        self.rank, self.num_ranks = rank, num_ranks
        self.file = self.piece = self.number = 0
        self.goes_on = False

    def __iter__(self) -> Iterator[Tensor]:
        if not self.goes_on:
            self.file = self.piece = self.number = 0
        self.goes_on = False
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info is not None else (0, 1)
        own, num_shares = worker * self.num_ranks + self.rank, num_workers * self.num_ranks
        while self.file < len(self.files):
            text = self.files[self.file].read_bytes()
            pieces = [text[at : at + CONTEXT + 32] for at in range(0, len(text) - CONTEXT - 32, 32)]
            while self.piece < len(pieces):
                piece, is_own = pieces[self.piece], self.number % num_shares == own
                self.piece += 1
                self.number += 1
                if is_own:
                    yield torch.frombuffer(bytearray(piece), dtype=torch.uint8).long()
            self.file, self.piece = self.file + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"file": self.file, "piece": self.piece, "number": self.number}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.file, self.piece, self.number = (state_dict[name] for name in ("file", "piece", "number"))
        self.goes_on = True


class NextByte(dt.Module):
    """From eight bytes to the next one."""

    def __init__(self, folder: Path, batch_size: int, num_workers: int, width: int = 16) -> None:
        super().__init__()
        self.folder, self.batch_size, self.num_workers = folder, batch_size, num_workers
        self.bytes = nn.Embedding(256, width)
        self.net = nn.Sequential(nn.Linear(CONTEXT * width, 128), nn.ReLU(), nn.Linear(128, 256))

    def loss(self, pieces: Tensor) -> Tensor:
        """Nats per byte, over the last 32 of each piece: `(batch, CONTEXT + 32) int64`."""
        before = self.bytes(pieces[:, :-1]).unfold(1, CONTEXT, 1).flatten(2)
        return F.cross_entropy(self.net(before).flatten(0, 1), pieces[:, CONTEXT:].flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> DataLoader:
        data = Sources(self.folder, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(data, batch_size=self.batch_size, num_workers=self.num_workers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def bytes_alone(model: NextByte, unseen: Tensor) -> float:
    """Nats per byte of a model that knows how often each byte comes, and nothing of what was before."""
    text = torch.cat([piece[CONTEXT:] for piece in Sources(model.folder, 0, 1)])
    chances = (torch.bincount(text, minlength=256) + 1.0).double()
    return -(chances / chances.sum()).log()[unseen[:, CONTEXT:]].mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--batch", type=int, default=32, help="pieces of a micro-batch, on each rank")
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that read")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("runs/stream"), help="what is there is gone on with")
    options = parser.parse_args()
    library = Path(sysconfig.get_paths()["stdlib"])
    if options.workers:  # their places are not known here: what was read is read again, and dropped
        warnings.filterwarnings("ignore", message="The loader cannot begin in the middle of an epoch")

    def train(name: str, steps: int, **how: Any) -> NextByte:
        dt.seed_everything(1, verbose=False)
        model = NextByte(library, options.batch, options.workers)
        trainer = dt.Trainer(
            accelerator="cpu", devices=options.devices, max_steps=steps, logger=False,
            callbacks=[dt.ModelCheckpoint(options.out / name, every_n_train_steps=max(1, options.steps // 2))],
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, **how)
        return model

    train("stopped", options.steps // 2, resume="auto")  # the program may end here, and be started again
    model = train("stopped", options.steps, resume="auto")
    whole = train("whole", options.steps)
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    difference = max((one - other).abs().max().item() for one, other in pairs)

    unseen = torch.stack(list(Sources(library / "json", 0, 1)))
    with torch.no_grad():
        loss = model.loss(unseen).item()
    model.print(f"weights of the run that was stopped differ by {difference}")
    model.print(
        f"nats per unseen byte {loss:.3f} (has to be below {bytes_alone(model, unseen):.3f}: how often each comes)"
    )


if __name__ == "__main__":
    main()
