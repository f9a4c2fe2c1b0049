"""Training in windows, noted window by window in each rank, and what one process makes of it with plain torch."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import drivetrain
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.data.order import epoch_order
from drivetrain.strategies.by_name import make_strategy
from drivetrain.strategies.strategy import Strategy
from drivetrain.testing.comm_counter import CommCounter
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.unit.trainer.runs import QUIET, ListLogger

LEARNING_RATE = 0.1
MOST_SAMPLES = 500
SEED = 3
REDUCTIONS = ("allreduce_", "allreduce_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor")
WEIGHTS = ("none", "random", "some zero", "zero on rank 0")


@dataclass(frozen=True)
class Case:
    """Data, their weights, and how an optimizer step is cut.

    Attributes:
        batch_size: Samples of a micro-batch, on each rank; at most, where `global_batch` is given.
        size: Micro-batches of a window, on each rank, where it is not.
        length: Samples of an epoch.
        weights: Of the samples: one of `WEIGHTS`. A micro-batch's loss is the weighted mean over its samples, which is
            nan where they have no weight.
        loop: Written by hand over `fabric.windows` (`"windows"`), or a `"trainer"`.
        num_epochs: Whole epochs.
        is_shuffled: Each epoch has another order.
        global_batch: Samples of a window on all ranks.
    """

    batch_size: int
    size: int
    length: int
    weights: str = "none"
    loop: str = "windows"
    num_epochs: int = 1
    is_shuffled: bool = False
    global_batch: int | None = None

    def window_samples(self, world: int) -> int:
        """Samples of a full window on all ranks."""
        return self.global_batch or self.batch_size * self.size * world

    def loader(self, dtype: torch.dtype) -> DataLoader[Any]:
        """Micro-batches `(features, targets, weights, numbers)`."""
        data = TensorDataset(*(column[: self.length] for column in columns(self.weights, dtype)))
        return DataLoader(data, batch_size=self.batch_size, shuffle=self.is_shuffled)

    def trainer_arguments(self) -> dict[str, Any]:
        """How a `Trainer` is told of the cut."""
        return {"accumulate_grad_batches": self.size} if self.global_batch is None else self.cut()

    def cut(self) -> dict[str, Any]:
        """How a loader is told of the global batch, if there is one."""
        if self.global_batch is None:
            return {}
        return {"global_batch_size": self.global_batch, "micro_batch_size": self.batch_size}


@functools.cache
def columns(weights: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Features, targets, weights and numbers of all samples that there are."""
    features, targets = make_dataset(MOST_SAMPLES).tensors
    numbers = torch.arange(MOST_SAMPLES)
    own = torch.ones(MOST_SAMPLES, dtype=torch.float64)
    if weights != "none":
        own = 0.25 + 4 * torch.rand(MOST_SAMPLES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if weights == "some zero":
        own[numbers % 3 == 1] = 0
    return features.to(dtype), targets, own.to(dtype), numbers


def make_net(dtype: torch.dtype) -> nn.Module:
    """The network of every run."""
    return make_mlp(num_hidden=8).to(dtype)


@dataclass
class Note:
    """What a rank notes of a window.

    Attributes:
        seen: Numbers of its samples.
        gradient: What the optimizer saw; `None` if it made no step.
        loss: The loss on this rank times its weight; of a trainer, what rank 0 has logged for all.
        weight: Of its samples; of a trainer, 1 on rank 0.
        num_calls: Reductions.
        num_bytes: What was given to them.
    """

    seen: list[int] = field(default_factory=list)
    gradient: Tensor | None = None
    loss: float = 0.0
    weight: float = 0.0
    num_calls: int = 0
    num_bytes: int = 0


@dataclass
class Outcome:
    """What came of a case on one rank: its windows, and the parameters after the last."""

    windows: list[Note]
    parameters: Tensor


class Notes(drivetrain.Callback):
    """Takes notes in a loop of either kind."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.counter = CommCounter()
        self.rank = current_cluster().rank
        self.done: list[Note] = []
        self.now = Note()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradient of each of its steps."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]

        def take(*_: Any) -> None:
            assert self.now.gradient is None, "two steps in a window"
            self.now.gradient = flat([p.grad for p in parameters])

        optimizer.register_step_pre_hook(take)

    def loss_of(self, model: Any, batch: Any) -> tuple[Tensor, Tensor | None]:
        """The loss of a micro-batch, and its weight."""
        features, targets, weights, numbers = batch
        self.now.seen += numbers.tolist()
        losses = functional.cross_entropy(model(features), targets, reduction="none")
        if self.case.weights == "none":
            return losses.mean(), None
        if self.case.weights == "zero on rank 0" and self.rank == 0:
            weights = torch.zeros_like(weights)
        total = weights.sum()
        return (losses * weights).sum() / total, total

    def end_window(self) -> Note:
        """The window is over."""
        note, self.now = self.now, Note()
        note.num_calls, note.num_bytes = self.counter.num_calls(*REDUCTIONS), self.counter.num_bytes(*REDUCTIONS)
        self.counter.clear()
        self.done.append(note)
        return note

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.counter.clear()

    def on_step_end(self, trainer: Any, pl_module: Any) -> None:
        self.end_window()


def flat(tensors: Sequence[Any]) -> Tensor:
    """Copies of tensors as one float64 vector, whole where they are sharded."""
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    return torch.cat([tensor.detach().double().flatten() for tensor in whole])


def run_cases(strategy_name: str, dtype: torch.dtype, cases: Sequence[Case]) -> list[Outcome]:
    """Run cases in this rank, one after the other.

    Ranks: all.
    """
    world = current_cluster().world_size
    strategy = make_strategy(strategy_name, num_ranks=world)
    fabric = drivetrain.Fabric(accelerator="cpu", devices=world, strategy=strategy)
    fabric.launch()
    try:
        return [_run_case(strategy, case, dtype) for case in cases]
    finally:
        fabric.close()


def _run_case(strategy: Strategy, case: Case, dtype: torch.dtype) -> Outcome:
    torch.manual_seed(SEED)
    run = _run_windows if case.loop == "windows" else _run_trainer
    notes = Notes(case)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A window had no weight")
            with notes.counter:
                return Outcome(notes.done, run(strategy, case, dtype, notes))
    except BaseException as error:
        error.add_note(f"in {case}")
        raise


def _run_windows(strategy: Strategy, case: Case, dtype: torch.dtype, notes: Notes) -> Tensor:
    fabric = drivetrain.Fabric(accelerator="cpu", devices=strategy.collectives.world_size, strategy=strategy)
    model = fabric.setup_module(make_net(dtype))
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=LEARNING_RATE))
    loader = fabric.setup_dataloaders(case.loader(dtype), **case.cut())
    size = case.size if case.global_batch is None else None
    notes.watch(optimizer)
    for _ in range(case.num_epochs):
        notes.counter.clear()
        for window in fabric.windows(loader, model, optimizer, size=size):
            for batch in window:
                window.backward(*notes.loss_of(model, batch))
            note = notes.end_window()
            note.weight = float(window.weight)
            note.loss = 0.0 if window.loss is None else float(window.loss) * note.weight
    return flat(list(model.parameters()))


class Trained(drivetrain.Module):
    """The module of a trainer."""

    def __init__(self, dtype: torch.dtype, notes: Notes) -> None:
        super().__init__()
        self.net = make_net(dtype)
        self.notes = notes

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss, weight = self.notes.loss_of(self.net, batch)
        self.log("loss", loss)
        return {"loss": loss, "weight": weight}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)
        self.notes.watch(optimizer)
        return optimizer


def _run_trainer(strategy: Strategy, case: Case, dtype: torch.dtype, notes: Notes) -> Tensor:
    logger, module = ListLogger(), Trained(dtype, notes)
    trainer = drivetrain.Trainer(
        **QUIET | {"logger": logger}, devices=strategy.collectives.world_size, strategy=strategy,
        max_epochs=case.num_epochs, log_every_n_steps=1, callbacks=[notes], **case.trainer_arguments(),
    )  # fmt: skip
    trainer.fit(module, case.loader(dtype))
    if strategy.collectives.is_global_zero:
        for note, (_, loss) in zip(notes.done, logger.of("loss"), strict=True):
            note.loss, note.weight = loss, 1.0
    return flat(list(module.parameters()))


@dataclass(frozen=True)
class Expected:
    """A window of one process: the numbers of its samples, its gradient (`None` without any weight) and its loss."""

    numbers: list[int]
    gradient: Tensor | None
    loss: float


def train_alone(case: Case, outcomes: Sequence[Outcome], dtype: torch.dtype) -> tuple[list[Expected], Tensor]:
    """Plain torch, in float64: one full batch for each window.

    Args:
        case: What was run.
        outcomes: Of all ranks; they tell which samples rank 0 had, as far as these have no weight.
        dtype: To which data and first parameters were rounded.

    Returns:
        The windows, and the parameters after the last.
    """
    features, targets, weights, _ = (c.double() if c.is_floating_point() else c for c in columns(case.weights, dtype))
    net = make_net(dtype).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    windows: list[Expected] = []
    num_samples = case.window_samples(len(outcomes))
    for epoch in range(case.num_epochs):
        order = list(epoch_order(case.length, seed=SEED, epoch=epoch, is_shuffled=case.is_shuffled))
        for start in range(0, case.length, num_samples):
            numbers = order[start : start + num_samples]
            own = weights[numbers]
            if case.weights == "zero on rank 0" and len(windows) < len(outcomes[0].windows):
                own = own * torch.tensor([number not in outcomes[0].windows[len(windows)].seen for number in numbers])
            if not own.any():
                windows.append(Expected(numbers, None, math.nan))
                continue
            losses = functional.cross_entropy(net(features[numbers]), targets[numbers], reduction="none")
            loss = (losses * own).sum() / own.sum()
            loss.backward()
            windows.append(Expected(numbers, flat([p.grad for p in net.parameters()]), loss.item()))
            optimizer.step()
            optimizer.zero_grad()
    return windows, flat(list(net.parameters()))
