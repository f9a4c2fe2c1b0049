"""The batch that the user thinks in: any global batch on any ranks is the step of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from drivetrain import MicroBatchFinder
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA, Recorder, check_sent, fit
from tests.ranks.open_fabric import error_of, largest_difference, open_fabric, sgd, weights

LENGTH = 101


def loader(length: int = LENGTH) -> DataLoader[Any]:
    return DataLoader(Subset(DATA, range(length)), batch_size=3)


def train_alone(global_batch: int, length: int = LENGTH) -> Any:
    """Plain torch: one full batch for each step."""
    alone = make_mlp()
    optimizer = sgd(alone)
    for start in range(0, length, global_batch):
        x, y = DATA[start : min(start + global_batch, length)]
        functional.cross_entropy(alone(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(alone)


def train(global_batch: int, micro: Any) -> Any:
    """In each rank."""
    if micro == "probe":
        micro = MicroBatchFinder(probe=Memory())
    module = Recorder()
    trainer = fit(module, loader(), strategy="ddp", global_batch_size=global_batch, micro_batch_size=micro)
    own = {n.removeprefix("net."): v for n, v in weights(module).items()}
    return own, trainer.global_step, trainer.micro_batch_size, sorted(module.seen)


class Memory:
    """Holds so many samples: rank 1 has least of it, and less after a few calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, num_samples: int) -> None:
        self.calls += 1
        rank = current_cluster().rank
        holds = 100 if rank != 1 else 6 if self.calls < 8 else 2
        if num_samples > holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("global_batch", "micro"), [(24, 4), (25, 4), (7, 2), (2, 5), (101, 9), (200, 16)])
def test_any_global_batch_is_the_step_of_one_process(ranks: Any, world: int, global_batch: int, micro: int) -> None:
    """Where it does not divide, the user would have to change it with the number of ranks, or get another result."""
    alone = train_alone(global_batch)
    results = ranks.run(train, global_batch, micro, world=world)
    for own, steps, size, _ in results:
        assert largest_difference(own, alone) < 1e-12
        assert steps == -(-LENGTH // global_batch) and size <= micro
    assert sorted(sample for _, _, _, seen in results for sample in seen) == list(range(LENGTH))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_out_of_memory_on_one_rank_splits_on_all_and_leaves_the_step_as_it_is(ranks: Any, world: int) -> None:
    """The others would wait for ever for the rank that failed, or train on other gradients."""
    alone = train_alone(36)
    for own, steps, size, _ in ranks.run(train, 36, "probe", world=world):
        assert largest_difference(own, alone) < 1e-12
        assert steps == 3 and size == {1: 36, 2: 2, 3: 2}[world]


class FailsInBackward(torch.autograd.Function):
    """The identity; running out of memory on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if len(gradient) > 5:
            raise torch.OutOfMemoryError("out of memory")
        return gradient


class HalfWay(Recorder):
    """Fails in the middle of a backward, with dropout and batch statistics that a second attempt must not see twice."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        self.first = torch.nn.Sequential(
            torch.nn.Linear(8, 8, dtype=torch.float64),
            torch.nn.BatchNorm1d(8, dtype=torch.float64),
            torch.nn.Dropout(0.5),
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden = self.first(x)
        loss = functional.cross_entropy(self.net(FailsInBackward.apply(hidden) if self.fails else hidden), y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss


def train_half_way(micro: Any, fails: bool) -> Any:
    if fails:
        micro = MicroBatchFinder(start=10)
    torch.manual_seed(0)
    module = HalfWay(fails=fails)
    trainer = fit(module, loader(40), strategy="ddp", global_batch_size=20, micro_batch_size=micro)
    return weights(module), {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_a_backward_that_failed_half_way_leaves_nothing_behind(ranks: Any) -> None:
    """Half a gradient would be counted, random numbers and statistics be drawn on, a loss be logged twice."""
    fixed = ranks.run(train_half_way, MicroBatchFinder(start=5), False)
    found = ranks.run(train_half_way, None, True)
    for (own, logged), (other, other_logged) in zip(fixed, found, strict=True):
        assert largest_difference(own, other) == 0 and logged == other_logged


def too_small() -> None:
    def probe(num_samples: int) -> None:
        raise torch.OutOfMemoryError("out of memory")

    fit(Recorder(), loader(), strategy="ddp", global_batch_size=24, micro_batch_size=MicroBatchFinder(probe=probe))


def test_a_model_that_does_not_fit_at_all_is_an_error_on_all_ranks(ranks: Any) -> None:
    """Ranks would split for ever, or hang."""
    for kind, code, text in ranks.run(error_of, too_small):
        assert (kind, code) == ("OutOfMemoryError", "out-of-memory") and "1 sample does not fit" in text


def raw_loop(micro: Any) -> Any:
    micro = MicroBatchFinder(probe=Memory()) if micro == "probe" else micro
    with open_fabric() as fabric:
        module = make_mlp()
        model, optimizer = fabric.setup(module, sgd(module))
        prepared = fabric.setup_dataloaders(loader(), global_batch_size=36, micro_batch_size=micro)
        for window in fabric.windows(prepared, model, optimizer):
            window.run(lambda batch: functional.cross_entropy(model(batch[0]), batch[1]))
        return weights(model)


@pytest.mark.parametrize("micro", [5, "probe"])
def test_a_raw_loop_has_global_batches_too(ranks: Any, micro: Any) -> None:
    """Only a Trainer's users could think in the global batch."""
    alone = train_alone(36)
    for own in ranks.run(raw_loop, micro):
        assert largest_difference(own, alone) < 1e-12


def test_a_global_batch_syncs_once_for_each_step(ranks: Any) -> None:
    """Uneven micro-batches would each be synced."""

    def in_rank() -> Any:
        module = Recorder()
        trainer = fit(module, loader(72), strategy="ddp", global_batch_size=24, micro_batch_size=4)
        assert trainer.accumulate_grad_batches == 3
        return module.sent

    for sent in ranks.run(in_rank):
        check_sent(sent, 8 * sum(p.numel() for p in make_mlp().parameters()), 3)


def plan_of(**options: Any) -> str:
    """What is printed."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        fit(Recorder(), loader(), strategy="ddp", limit_train_batches=2, **options)
    return printed.getvalue()


def test_the_plan_is_said_in_one_line_by_one_rank(ranks: Any) -> None:
    """A user could not see what their global batch became."""
    size = f"{8 * sum(p.numel() for p in make_mlp().parameters()) / 1e6:.3g}"
    even = ranks.run(lambda: plan_of(global_batch_size=32, micro_batch_size=4))
    assert even == [f"32 = 2 ranks x 4 x 4 micro-batches; 1 sync of {size} MB per step\n", ""]
    uneven = ranks.run(lambda: plan_of(global_batch_size=25, micro_batch_size=4))
    assert uneven[0] == f"25 over 2 ranks x 3 to 4 x 4 micro-batches; 1 sync of {size} MB per step\n"
    (own,) = ranks.run(lambda: plan_of(global_batch_size=6), world=1)
    assert own == "6 = 1 rank x 3 x 2 micro-batches; nothing to sync\n"


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"global_batch_size": 0, "micro_batch_size": 1}, "ConfigError", "batch-size"),
        ({"global_batch_size": 8, "micro_batch_size": "all"}, "ConfigError", "batch-size"),
        ({"micro_batch_size": 8}, "ConfigError", "batch-split"),
        ({"global_batch_size": 8}, "ConfigError", "batch-split"),
        ({"global_batch_size": 8, "micro_batch_size": 2, "remainder": "carry"}, "ConfigError", "remainder-policy"),
        ({"global_batch_size": 8, "accumulate_grad_batches": 2}, "ConfigError", "batch-split"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(options: dict[str, Any], kind: str, code: str) -> None:
    """A step would hold another number of samples than was asked for."""
    assert error_of(lambda: fit(Recorder(), loader(), **options))[:2] == (kind, code)
