"""Runs whose every part has a memory: what they train, from which data, and with what around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import drivetrain
from drivetrain.testing.fixtures import NumberedDataset, make_mlp

NUM_SAMPLES = 23
BATCH_SIZE = 3


@dataclass(frozen=True)
class Case:
    """One kind of run.

    Attributes:
        data: `"map"`, `"own-sampler"`, `"stateful"`, `"stream"`, `"stateful-loader"`, or `"batches"`.
        workers: Of the training loader.
        is_persistent: They stay over epochs.
        accumulate: Micro-batches of a window.
        remainder: Of the last window of an epoch.
        around: What there is besides: `"plain"`, `"plateau"`, `"ema"`, `"stopping"`, `"steps"`, `"scaler"`, `"val"`, or
            `"ranks"`: nothing that depends on how samples are cut.
        options: Of the trainer.
    """

    data: str = "map"
    workers: int = 0
    is_persistent: bool = False
    accumulate: int = 2
    remainder: str = "step"
    around: str = "plain"
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        workers = f"{self.workers}{'p' if self.is_persistent else ''} workers"
        more = "".join(f", {name}={value}" for name, value in self.options)
        return f"{self.data}, {workers}, windows of {self.accumulate} ({self.remainder}), {self.around}{more}"


def noise() -> torch.Tensor:
    """A draw from each source of random numbers."""
    return torch.tensor([random.random(), float(numpy.random.rand()), float(torch.rand(()))], dtype=torch.float64)


class Augmented(Dataset[Any]):
    """Numbered samples with noise that is drawn when they are read."""

    reads: int = 0
    has_noise = True

    def __init__(self, length: int = NUM_SAMPLES) -> None:
        self.samples = NumberedDataset(length)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        features, target, number = self.samples[index]
        if self.has_noise:
            features = features.clone()
            features[:3] += 0.1 * noise()
        return features, target, number


class Stream(IterableDataset[Any]):
    """A shuffled stream, shared by workers."""

    shards_itself = True

    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        self.data = Augmented()
        self.share = rank, num_ranks

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.data)).tolist()
        info = get_worker_info()
        rank, num_ranks = self.share
        parts, part = (num_ranks * info.num_workers, rank * info.num_workers + info.id) if info else (num_ranks, rank)
        for index in order:
            if index % parts == part:
                yield self.data[index]


class StatefulStream(Stream):
    """It knows where it stands, and its order."""

    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__(rank, num_ranks)
        self.order: list[int] = []
        self.next = 0
        self.goes_on = False

    def __iter__(self) -> Iterator[Any]:
        if not self.goes_on:
            rank, num_ranks = self.share
            self.order = torch.randperm(len(self.data), generator=self.generator()).tolist()[rank::num_ranks]
            self.next = 0
        self.goes_on = False
        while self.next < len(self.order):
            self.next += 1
            yield self.data[self.order[self.next - 1]]

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(sum(place * index for place, index in enumerate(self.order)))

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order), "next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.next, self.goes_on = state["order"], state["next"], True


class Batches:
    """Any iterable of batches, over several loaders."""

    def __init__(self, *loaders: Any) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        for batches in zip(*self.loaders, strict=True):
            yield from batches


def make_data(case: Case) -> Any:
    cluster = drivetrain.cluster.read_cluster.current_cluster()
    rank, num_ranks = cluster.rank, cluster.world_size
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": case.workers}
    if case.workers:
        options |= {"persistent_workers": case.is_persistent, "multiprocessing_context": "fork"}
    if case.data == "stateful":
        return DataLoader(StatefulStream(rank, num_ranks), **options)
    if case.data == "stream":
        return DataLoader(Stream(rank, num_ranks), **options)
    if case.data == "own-sampler":
        data = Augmented()
        return DataLoader(data, sampler=DistributedSampler(data, num_ranks, rank), **options)
    if case.data == "stateful-loader":
        from torchdata.stateful_dataloader import StatefulDataLoader

        stream = StatefulStream(rank, num_ranks)
        stream.data.has_noise = case.workers == 0  # it knows nothing of the random state in workers
        return StatefulDataLoader(stream, **options)
    if case.data == "batches":
        return Batches(*(DataLoader(Augmented(12), shuffle=True, **options) for _ in range(2)))
    data = Augmented()
    data.has_noise = case.around != "ranks"
    return DataLoader(data, shuffle=True, **options)


class Net(drivetrain.Module):
    """Dropout, batch statistics, momentum, a schedule, and values that are logged in all ways."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        is_cut_at_will = case.around == "ranks"
        self.net = make_mlp(num_hidden=6, dropout=0.0 if is_cut_at_will else 0.3, has_batch_norm=not is_cut_at_will)

    def loss_of(self, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("most", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val", self.loss_of(batch), add_dataloader_idx=dataloader_idx > 0)

    def on_train_epoch_start(self) -> None:
        torch.rand(3)  # whoever draws here must not change what follows on a resume

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.case.around == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val"}}
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def make_run(case: Case, directory: Path) -> tuple[drivetrain.Trainer, dict[str, Any]]:
    """For `assert_same_run`."""
    callbacks: list[Any] = [drivetrain.ModelCheckpoint(directory / "kept", monitor="val", save_top_k=2)]
    options: dict[str, Any] = {"max_epochs": 2, "val_check_interval": "2 steps", "num_sanity_val_steps": 1}
    if case.around == "ema":
        callbacks.append(drivetrain.EMA(0.8))
    elif case.around == "stopping":
        callbacks.append(drivetrain.EarlyStopping("val", patience=2, min_delta=0.05))
    elif case.around == "steps":
        callbacks = [drivetrain.ModelCheckpoint(directory / "kept", every_n_train_steps=3, save_top_k=2)]
        options["max_steps"] = 5
    elif case.around == "plateau":
        options["val_check_interval"] = 1.0
    elif case.around == "scaler":
        options["precision"] = "16-mixed"
    world = drivetrain.cluster.read_cluster.current_cluster().world_size
    trainer = drivetrain.Trainer(
        **{
            "accelerator": "cpu", "devices": world, "strategy": drivetrain.DDP() if world > 1 else "auto",
            "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
            "accumulate_grad_batches": case.accumulate, "remainder": case.remainder, "callbacks": callbacks,
            **options, **dict(case.options),
        }
    )  # fmt: skip
    evaluated = [DataLoader(NumberedDataset(8), batch_size=4, shuffle=True)]
    if case.around == "val":
        evaluated.append(DataLoader(NumberedDataset(5, seed=3), batch_size=4, num_workers=1, persistent_workers=True))
    return trainer, {"model": Net(case), "train_dataloaders": make_data(case), "val_dataloaders": evaluated}


def numbers_of(batch: Any) -> Any:
    return batch[2]
