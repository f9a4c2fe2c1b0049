"""Ranks that hold different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, Subset

import drivetrain
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.fixtures import make_mlp
from tests.ranks.counted_windows import DATA, Recorder, check_sent, find, fit, with_sgd
from tests.ranks.open_fabric import error_of, largest_difference, open_fabric, sgd, weights


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Gives each rank its own share of the samples, as many as it says."""

    shards_itself = True

    def __init__(self, shares: list[list[int]]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (DATA[i] for i in self.shares[current_cluster().rank])


UNEVEN = {
    "a shorter rank": [[*range(0, 14)], [*range(14, 22)]],
    "a shorter last batch": [[*range(0, 8)], [*range(8, 15)]],
    "a rank that ends in an earlier window": [[*range(0, 30)], [*range(30, 34)]],
    "a rank without any batch": [[*range(0, 10)], []],
    "rank 0 without any batch": [[], [*range(0, 10)]],
    "a rank that ends within the last window": [[*range(0, 10)], [*range(10, 18)]],
    "a rank that ends within a window that the other one fills": [[*range(0, 12)], [*range(12, 22)]],
}


def train_stream(shares: list[list[int]], uneven: str, how: str) -> Any:
    """Windows of 3 micro-batches of 2 over streams."""
    loader = DataLoader(Stream(shares), batch_size=2)
    if how == "trainer":
        module = Recorder()
        fit(module, loader, accumulate_grad_batches=3, strategy="ddp", uneven=uneven)
        return {n.removeprefix("net."): v for n, v in weights(module).items()}, module.seen
    seen: list[int] = []
    with open_fabric() as fabric:
        model, optimizer = fabric.setup(*with_sgd(make_mlp()))
        prepared = fabric.setup_dataloaders(loader, uneven=uneven)
        for window in fabric.windows(prepared, model, optimizer, size=3, uneven=uneven):
            for x, y in window:
                seen += [find(row) for row in x]
                window.backward(functional.cross_entropy(model(x), y))
        return weights(model), seen


def train_shares(shares: list[list[int]], num_windows: int | None = None) -> Any:
    """What one process makes of it: windows of the samples that all ranks hold in them."""
    alone = make_mlp()
    optimizer = sgd(alone)
    longest = max(len(share) for share in shares)
    for start in range(0, longest, 6)[:num_windows]:
        numbers = [number for share in shares for number in share[start : start + 6]]
        functional.cross_entropy(alone(DATA.tensors[0][numbers]), DATA.tensors[1][numbers]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(alone)


@pytest.mark.parametrize("how", ["trainer", "fabric"])
@pytest.mark.parametrize("case", UNEVEN)
def test_joined_ranks_count_each_sample_once_as_one_process(ranks: Any, case: str, how: str) -> None:
    """The run hangs at the end of the shortest rank, or trains some samples twice."""
    shares = UNEVEN[case]
    results = ranks.run(train_stream, shares, "join", how)
    assert [seen for _, seen in results] == shares
    alone = train_shares(shares)
    for own, _ in results:
        assert largest_difference(own, alone) < 1e-12


@pytest.mark.parametrize("how", ["trainer", "fabric"])
def test_stopped_ranks_stop_where_the_first_has_no_more(ranks: Any, how: str) -> None:
    """The run would hang at the end of the shortest rank."""
    shares = UNEVEN["a rank that ends in an earlier window"]
    results = ranks.run(train_stream, shares, "stop", how)
    assert largest_difference(results[0][0], results[1][0]) == 0
    assert results[1][1] == shares[1]
    assert largest_difference(results[0][0], train_shares(shares, num_windows=1)) < 1e-12


@pytest.mark.parametrize("how", ["trainer", "fabric"])
@pytest.mark.parametrize("case", [case for case in UNEVEN if case != "a shorter last batch"])
def test_uneven_ranks_are_an_error_on_all_of_them_unless_they_were_asked_for(ranks: Any, case: str, how: str) -> None:
    """One rank would say so, and the others hang."""
    for rank, (kind, code, text) in enumerate(ranks.run(error_of, train_stream, UNEVEN[case], "error", how)):
        assert (kind, code) == ("UnevenDataError", "uneven")
        assert f"[rank {rank}/2]" in text and "1 of 2 ranks ran out of data" in text and "uneven='join'" in text


def train_sized(lengths: list[int], uneven: str) -> Any:
    """A loader with a length that shards itself: rank 0 and rank 1 hold different numbers of batches."""
    start = sum(lengths[: current_cluster().rank])
    own = Subset(DATA, range(start, start + lengths[current_cluster().rank]))
    module = Recorder()
    fit(
        module, DataLoader(own, batch_size=2), accumulate_grad_batches=3, strategy="ddp", uneven=uneven,
        use_distributed_sampler=False,
    )  # fmt: skip
    return {n.removeprefix("net."): v for n, v in weights(module).items()}, module.seen, module.sent


def test_sized_loaders_that_shard_themselves_unevenly_are_an_error_before_training(ranks: Any) -> None:
    """Hours later, at the end of the epoch, the run would hang."""
    for kind, code, text in ranks.run(error_of, train_sized, [20, 12], "error"):
        assert (kind, code) == ("UnevenDataError", "uneven")
        assert "Rank 1 holds 6 batches; rank 0 has 10." in text


@pytest.mark.parametrize("lengths", [[20, 12], [12, 20], [12, 13]])
def test_sized_loaders_that_shard_themselves_can_be_joined(ranks: Any, lengths: list[int]) -> None:
    """A longer rank's samples would be dropped, or the shorter rank would be asked for batches that it has not."""
    shares = [[*range(lengths[0])], [*range(lengths[0], sum(lengths))]]
    alone = train_shares(shares)
    for rank, (own, seen, _) in enumerate(ranks.run(train_sized, lengths, "join")):
        assert seen == shares[rank]
        assert largest_difference(own, alone) < 1e-12


def test_even_loaders_that_shard_themselves_sync_once_and_agree(ranks: Any) -> None:
    """Samplers of one's own would cost a message more for each window."""
    for own, _, sent in ranks.run(train_sized, [12, 12], "error"):
        assert largest_difference(own, train_shares([[*range(12)], [*range(12, 24)]])) < 1e-12
        check_sent(sent, 8 * sum(p.numel() for p in make_mlp().parameters()), 2)


def test_a_plain_iterable_can_be_given_to_windows(ranks: Any) -> None:
    """A list of batches would have to become a loader first."""

    def in_rank(uneven: str) -> Any:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*with_sgd(make_mlp()))
            own = [DATA[0:2], DATA[2:4]] if fabric.global_rank == 0 else [DATA[4:6]]
            for window in fabric.windows(own, model, optimizer, size=3, uneven=uneven):
                for x, y in window:
                    window.backward(functional.cross_entropy(model(x), y))
            return weights(model)

    for own in ranks.run(in_rank, "join"):
        assert largest_difference(own, train_shares([[0, 1, 2, 3], [4, 5]])) < 1e-12
    assert [code for _, code, _ in ranks.run(error_of, in_rank, "error")] == ["uneven", "uneven"]


class Validated(drivetrain.Module):
    """Trains and logs a loss of validation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_mlp()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        return sgd(self)


def test_streams_of_different_lengths_train_and_validate_over_epochs(ranks: Any) -> None:
    """Training or validation would hang at the end of the shorter rank, or count its samples for more."""
    held_out = [[*range(20, 21)], [*range(30, 37)]]

    def in_rank() -> Any:
        module = Validated()
        loaders = [DataLoader(Stream(one), batch_size=2) for one in ([[*range(10)], [*range(10, 14)]], held_out)]
        trainer = fit(module, *loaders, strategy="ddp", max_epochs=2, accumulate_grad_batches=3, uneven="join")
        return float(trainer.callback_metrics["val_loss"]), trainer.global_step, module

    numbers = held_out[0] + held_out[1]
    for val_loss, steps, module in ranks.run(in_rank):
        expected = functional.cross_entropy(module.net(DATA.tensors[0][numbers]), DATA.tensors[1][numbers])
        assert val_loss == pytest.approx(expected.item(), rel=1e-6)
        assert steps == 4


class Buffered(Recorder):
    """Has a buffer, which DDP broadcasts in the first forward of each window."""

    def __init__(self, weight_of: Any = None) -> None:
        super().__init__(weight_of)
        self.register_buffer("offset", torch.zeros(3))


@pytest.mark.parametrize("case", UNEVEN)
def test_ranks_without_batches_take_part_in_the_broadcast_of_buffers(ranks: Any, case: str) -> None:
    """Gradients would be received as buffers, or a rank would wait for a broadcast that the others do not make."""

    def in_rank() -> Any:
        module = Buffered()
        module.offset += current_cluster().rank
        loader = DataLoader(Stream(UNEVEN[case]), batch_size=2)
        fit(module, loader, accumulate_grad_batches=3, strategy="ddp", uneven="join")
        return {name.removeprefix("net."): value for name, value in weights(module).items()}

    alone = {"offset": torch.zeros(3), **train_shares(UNEVEN[case])}
    for own in ranks.run(in_rank):
        assert largest_difference(own, alone) < 1e-12


def test_ranks_without_a_loss_broadcast_buffers_once(ranks: Any) -> None:
    """A rank that ran its forward and has no loss would broadcast a second time."""

    def weight_of(rank: int, index: int) -> Any:
        return "none" if rank == 1 and index in (2, 3, 4, 5, 8) else None

    def in_rank() -> Any:
        module = Buffered(weight_of)
        fit(module, DataLoader(Subset(DATA, range(36)), batch_size=2), accumulate_grad_batches=3, strategy="ddp")
        return weights(module)

    first, second = ranks.run(in_rank)
    assert largest_difference(first, second) == 0
    assert torch.equal(first["offset"], torch.zeros(3))
