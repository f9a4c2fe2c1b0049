"""A run of a few steps in ranks that are forks of this process, and what one process makes of the same windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import IterableDataset

from drivetrain import ModelCheckpoint, Module, Trainer
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.launch.launch_function import launch_function
from drivetrain.testing.fixtures import NumberedDataset, make_mlp
from tests.faults.training import digest_of

DATA = NumberedDataset(400)
TOLERANCE = 1e-12


class Stream(IterableDataset[tuple[Tensor, Tensor, int]]):
    """Gives each rank its own share of the samples."""

    shards_itself = True

    def __init__(self, shares: Sequence[Sequence[int]]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        return (DATA[number] for number in self.shares[current_cluster().rank])


class Net(Module):
    """A float64 network that notes what it sees.

    Args:
        alter: Called with this module and the loss of a micro-batch; what it returns is the output of the step.

    Attributes:
        seen: Of this rank in training: step and samples of each micro-batch.
        validated: Samples of each validation.
        values: What each validation came to.
        gradients: On which each step was made.
    """

    def __init__(self, alter: Callable[[Net, Tensor], Any] = lambda net, loss: loss) -> None:
        super().__init__()
        self.net = make_mlp()
        self.alter = alter
        self.seen: list[tuple[int, list[int]]] = []
        self.validated: list[list[int]] = []
        self.values: list[float | None] = []
        self.gradients: list[dict[str, Tensor]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, targets, numbers = batch
        self.seen.append((self.global_step, numbers.tolist()))
        return self.alter(self, functional.cross_entropy(self.net(features), targets))

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        grads = {name: p.grad for name, p in self.net.named_parameters() if p.grad is not None}
        self.gradients.append({name: whole(grad).clone() for name, grad in grads.items()})

    def on_validation_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, targets, numbers = batch
        self.validated[-1] += numbers.tolist()
        self.log("val_loss", functional.cross_entropy(self.net(features), targets))

    def on_validation_end(self) -> None:
        value = self.trainer.callback_metrics.get("val_loss")
        self.values.append(None if value is None else float(value))

    def configure_optimizers(self) -> Any:
        return optimizer_of(self)


@dataclass
class Outcome:
    """What a rank says of its run; tensors are whole, not shards.

    Attributes:
        code: Of the error that ended it; empty if there was none.
        error: Its text.
        steps: That were counted.
        digest: Of weights and optimizer.
    """

    code: str
    error: str
    steps: int
    digest: str
    weights: dict[str, Tensor]
    gradients: list[dict[str, Tensor]]
    seen: list[tuple[int, list[int]]]
    validated: list[list[int]]
    values: list[float | None]
    notes: dict[str, Any] = field(default_factory=dict)


def fit(net: Net, *loaders: Any, notes: dict[str, Any] | None = None, **options: Any) -> Outcome:
    """Train in this rank, to the end or to an error."""
    quiet: dict[str, Any] = {
        "strategy": "ddp", "accelerator": "cpu", "devices": current_cluster().world_size, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
    }  # fmt: skip
    has_keeper = any(isinstance(one, ModelCheckpoint) for one in options.get("callbacks", ()))
    trainer = Trainer(enable_checkpointing=has_keeper, **{**quiet, **options})
    code = text = ""
    try:
        trainer.fit(net, *loaders)
    except Exception as error:
        code, text = getattr(error, "code", type(error).__name__), str(error)
    weights = {name: whole(value) for name, value in net.net.state_dict().items()}
    state = {name: whole(value) for name, value in momenta_of(trainer, net)}
    trainer._fabric.close()
    return Outcome(
        code, text, trainer.global_step, digest_of([weights, state]), weights, net.gradients, net.seen,
        net.validated, net.values, {} if notes is None else notes,
    )  # fmt: skip


def momenta_of(trainer: Any, net: Net) -> Iterator[tuple[str, Tensor]]:
    """What the optimizer remembers of each parameter."""
    for optimizer in trainer.optimizers:
        for name, parameter in net.net.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{name} {key}", value


def whole(value: Tensor) -> Tensor:
    """All shards of a tensor. Ranks: all."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered.detach()


def in_ranks(function: Callable[[], Outcome], directory: Path) -> list[Outcome]:
    """What a function returns in each of two ranks; what they print goes to a file."""

    def in_rank() -> Outcome:
        with open(directory / "console.txt", "ab") as console:
            os.dup2(console.fileno(), 1)
            os.dup2(console.fileno(), 2)
        return function()

    return launch_function(in_rank, num_ranks=2, start="fork", grace_s=1.0)


def optimizer_of(module: torch.nn.Module) -> torch.optim.SGD:
    """It remembers, and every gradient shows at once."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def train_alone(windows: Iterable[Sequence[int]]) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """What one process makes of windows, each with the mean over its samples: weights, and the gradient of each."""
    net = make_mlp()
    optimizer = optimizer_of(net)
    gradients = []
    for window in windows:
        samples = [DATA[number] for number in window]
        features, targets = torch.stack([one[0] for one in samples]), torch.stack([one[1] for one in samples])
        functional.cross_entropy(net(features), targets).backward()
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in net.state_dict().items()}, gradients


def windows_of(outcomes: Sequence[Outcome]) -> dict[int, list[int]]:
    """The samples of each step, on all ranks, sorted."""
    found: dict[int, list[int]] = {}
    for outcome in outcomes:
        for step, numbers in outcome.seen:
            found.setdefault(step, []).extend(numbers)
    return {step: sorted(numbers) for step, numbers in sorted(found.items())}


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Over all tensors of the same names."""
    assert left.keys() == right.keys(), (left.keys(), right.keys())
    return max((left[name] - right[name]).abs().max().item() for name in left)


def check_equal(outcomes: Sequence[Outcome], windows: Iterable[Sequence[int]]) -> None:
    """All ranks have done the same, and that is what one process makes of these windows, at each step."""
    first = outcomes[0]
    for rank, one in enumerate(outcomes):
        assert one.steps == first.steps, f"rank {rank} ended after step {one.steps}, rank 0 after {first.steps}"
        assert one.digest == first.digest, f"rank {rank} has other weights or momenta than rank 0"
    weights, gradients = train_alone(windows)
    assert len(gradients) == len(first.gradients), f"{len(first.gradients)} steps were made, not {len(gradients)}"
    for number, (ours, theirs) in enumerate(zip(first.gradients, gradients, strict=True)):
        difference = largest_difference(ours, theirs)
        assert difference <= TOLERANCE, f"the gradient of step {number} differs by {difference}"
    difference = largest_difference(first.weights, weights)
    assert difference <= TOLERANCE, f"weights differ by {difference}"
