"""One sync for each optimizer step, whatever the ranks hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import drivetrain
from drivetrain import DDP
from drivetrain.cluster.read_cluster import current_cluster
from drivetrain.testing.comm_counter import CommCounter, parameter_bytes
from drivetrain.testing.fixtures import make_dataset, make_mlp
from tests.ranks.open_fabric import error_of, gradients, largest_difference, open_fabric, sgd, weights

SMALL = 64  # bytes: the most that the one message beside the gradients may hold
DATA = make_dataset(400)
FIRST_32 = Subset(DATA, range(32))


class Recorder(drivetrain.Module):
    """Counts what is sent in each optimizer step, and notes which samples were seen."""

    def __init__(self, weight_of: Any = None) -> None:
        super().__init__()
        self.net = make_mlp()
        self.weight_of = weight_of
        self.counter = CommCounter()
        self.sent: list[dict[str, tuple[int, int]]] = []
        self.seen: list[int] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.counter.__enter__()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, targets = batch
        self.seen += [find(row) for row in features]
        loss = functional.cross_entropy(self.net(features), targets)
        weight = None if self.weight_of is None else self.weight_of(self.global_rank, batch_idx)
        return None if weight == "none" else {"loss": loss, "weight": weight}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step > len(self.sent):
            self.counter.__exit__(None, None, None)
            self.sent.append({name: (one.calls, one.bytes) for name, one in self.counter.counts().items()})
            self.counter.clear()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Gives each rank its own share of the samples, as many as it says."""

    shards_itself = True

    def __init__(self, shares: list[list[int]]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (DATA[i] for i in self.shares[current_cluster().rank])


def find(row: Tensor) -> int:
    """The number of a sample."""
    return int((DATA.tensors[0] == row).all(dim=1).nonzero()[0])


def fit(module: drivetrain.Module, loader: Any, **options: Any) -> drivetrain.Trainer:
    """One epoch, without anything beside it."""
    trainer = drivetrain.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, loader)
    trainer._fabric.close()
    return trainer


def first(length: int) -> Dataset[Any]:
    """The first samples."""
    return Subset(DATA, range(length))


def check_sent(sent: list[dict[str, tuple[int, int]]], full: int, num_windows: int, *, num_extra: int = 0) -> None:
    """One all-reduce of the parameters and at most one small message in each window.

    DDP may beside send `num_extra` small messages in each window, and orders its buckets anew once in a run.
    """
    assert len(sent) == num_windows
    orderings = [window.pop("broadcast_") for window in sent if "broadcast_" in window]
    assert len(orderings) <= 1 and all(size <= SMALL for _, size in orderings)
    for number, window in enumerate(sent):
        assert set(window) == {"allreduce_"}, window
        calls, size = window["allreduce_"]
        assert 1 <= calls <= 2 + num_extra, (number, window)
        assert full <= size <= full + SMALL, (number, window)


# ---------------------------------------------------------------- one sync


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str)
@pytest.mark.parametrize("length", [2 * 2 * 8 * 3, 2 * 2 * 8 * 2 + 2 * 2 * 3, 2 * 2 * 8 * 2 + 7])
def test_a_trainer_syncs_a_window_of_eight_once_also_the_last_one(
    ranks: Any, length: int, options: dict[str, bool]
) -> None:
    """Eight times the traffic, silently."""

    def in_rank() -> Any:
        module = Recorder()
        fit(module, DataLoader(first(length), batch_size=2), accumulate_grad_batches=8, strategy=DDP(**options))
        return module.sent, parameter_bytes(module)

    for sent, full in ranks.run(in_rank):
        check_sent(sent, full, 3, num_extra=len(options))  # which parameters were used, one int32 for each


@pytest.mark.parametrize("length", [96, 96 + 12, 96 + 7])
def test_a_hand_written_loop_syncs_a_window_of_eight_once(ranks: Any, length: int) -> None:
    """As above, through `fabric.windows`."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model, optimizer = fabric.setup(*with_sgd(make_mlp()))
            loader = fabric.setup_dataloaders(DataLoader(first(length), batch_size=2))
            sent = []
            for window in fabric.windows(loader, model, optimizer, size=8, max_norm=1.0):
                with CommCounter() as counter:
                    for x, y in window:
                        window.backward(functional.cross_entropy(model(x), y))
                sent.append({name: (one.calls, one.bytes) for name, one in counter.counts().items()})
            return sent, parameter_bytes(model)

    for sent, full in ranks.run(in_rank):
        check_sent(sent, full, 3 if length == 96 else 4)


def with_sgd(module: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module and its optimizer."""
    return module, sgd(module)


def test_a_window_over_two_modules_syncs_each_once_and_is_exact(ranks: Any) -> None:
    """Generator and discriminator could not be trained in windows, or one of them would be synced each time."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            modules = [make_mlp(seed=1), make_mlp(seed=2, num_features=4)]
            optimizers = [sgd(module) for module in modules]
            first, second = (fabric.setup_module(module) for module in modules)
            loader = fabric.setup_dataloaders(DataLoader(FIRST_32, batch_size=4 // fabric.world_size))
            sent = []
            for window in fabric.windows(loader, [first, second], optimizers, size=4):
                with CommCounter() as counter:
                    for x, y in window:
                        window.backward(functional.cross_entropy(second(first(x)), y))
                sent.append((counter.num_calls("allreduce_"), counter.num_bytes("allreduce_")))
            return sent, sum(map(parameter_bytes, modules)), {**weights(first), **prefixed("second.", weights(second))}

    _, _, alone = in_rank()
    for sent, full, own in ranks.run(in_rank):
        assert [(calls, size - full <= SMALL) for calls, size in sent] == [(3, True)] * 2
        assert largest_difference(own, alone) < 1e-12


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state under longer names."""
    return {prefix + name: value for name, value in state.items()}


# ---------------------------------------------------------------- no_backward_sync


def test_no_backward_sync_defers_one_module_and_several(ranks: Any) -> None:
    """Generator and discriminator could not be accumulated together, or one of them would sync each time."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            generator, discriminator = fabric.setup(make_mlp(seed=1)), fabric.setup(make_mlp(seed=2, num_features=4))
            x = DATA.tensors[0][fabric.global_rank * 8 :][:8]

            def backward(rows: Tensor) -> int:
                with CommCounter() as counter:
                    fabric.backward(discriminator(generator(rows)).square().mean())
                return counter.num_calls("allreduce_")

            counts = []
            with fabric.no_backward_sync([generator, discriminator]):
                counts.append(backward(x[:4]))
            with fabric.no_backward_sync(generator):
                counts.append(backward(x[4:]))
            counts.append(backward(x[4:]))
            return counts, gradients(generator), gradients(discriminator)

    (counts, *own), (_, *other) = ranks.run(in_rank)
    assert counts == [0, 1, 2]
    assert [largest_difference(a, b) for a, b in zip(own, other, strict=True)] == [0, 0]


def test_the_flag_comes_back_after_an_exception_when_nested_and_for_enabled_false(ranks: Any) -> None:
    """The next backward would not be synced: weights drift apart without a word."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            model = fabric.setup(make_mlp())
            x = DATA.tensors[0][fabric.global_rank * 4 :][:4]
            counts = []

            def backward() -> None:
                with CommCounter() as counter:
                    fabric.backward(model(x).square().mean())
                counts.append(counter.num_calls("allreduce_"))

            try:
                with fabric.no_backward_sync(model):
                    raise KeyError("leaves the block")
            except KeyError:
                backward()
            with fabric.no_backward_sync(model, enabled=False):
                backward()
            backward()
            with fabric.no_backward_sync(model):
                with fabric.no_backward_sync(model, enabled=False):
                    backward()
                with fabric.no_backward_sync(model):
                    pass
                backward()
            backward()
            return counts

    assert ranks.run(in_rank) == [[1, 1, 1, 0, 0, 1]] * 2


def test_a_module_that_was_not_set_up_cannot_be_deferred(ranks: Any) -> None:
    """Its gradients would never be synced at all."""

    def in_rank() -> Any:
        with open_fabric() as fabric:
            return error_of(fabric.no_backward_sync, make_mlp())

    for kind, code, text in ranks.run(in_rank):
        assert (kind, code) == ("ModelError", "not-set-up")
        assert "Sequential" in text and "fabric.setup()" in text


# ---------------------------------------------------------------- nothing to add


CASES = {
    "a None on one rank": lambda rank, index: "none" if rank == 1 and index in (2, 3, 5) else None,
    "a None in the last micro-batch of one rank": lambda rank, index: "none" if rank == 0 and index == 3 else None,
    "only None in a window of one rank": lambda rank, index: "none" if rank == 0 and index < 4 else None,
    "weight 0 on one rank": lambda rank, index: 0 if rank == 1 and index in (1, 3) else 2,
    "a weight of 0 as a tensor": lambda rank, index: torch.tensor(0.0 if rank == 1 and index == 3 else 2.0),
    "weights that differ": lambda rank, index: 1 + rank + index % 3,
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_with_nothing_to_add_stays_in_step(ranks: Any, case: str) -> None:
    """The others would wait for ever, or the mean would count what was left out."""
    weight_of = CASES[case]

    def in_rank() -> Any:
        module = Recorder(weight_of)
        fit(module, DataLoader(first(32), batch_size=2), accumulate_grad_batches=4, strategy="ddp")
        return weights(module), module.sent, parameter_bytes(module)

    alone = make_mlp()
    optimizer = sgd(alone)
    for step in range(2):
        total, parts = 0.0, []
        for index in range(4 * step, 4 * step + 4):
            for rank in range(2):
                x, y = DATA[(index * 2 + rank) * 2 : (index * 2 + rank) * 2 + 2]
                weight = weight_of(rank, index)
                weight = 0 if weight == "none" else 2 if weight is None else float(weight)
                parts.append(weight * functional.cross_entropy(alone(x), y))
                total += weight
        (sum(parts) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
    for own, sent, full in ranks.run(in_rank):
        assert largest_difference({n.removeprefix("net."): v for n, v in own.items()}, weights(alone)) < 1e-12
        check_sent(sent, full, 2)


@pytest.mark.parametrize("nothing", ["none", 0])
def test_a_window_without_weight_on_any_rank_makes_no_step(ranks: Any, nothing: Any) -> None:
    """Momentum and weight decay would move the weights; or the division by 0 would make them nan."""

    def in_rank() -> Any:
        module = Recorder(lambda rank, index: nothing if index < 4 else 2)
        with pytest.warns(UserWarning, match="no weight on any rank"):
            trainer = fit(module, DataLoader(first(32), batch_size=2), accumulate_grad_batches=4, strategy="ddp")
        return weights(module), trainer.global_step

    (own, steps), (other, _) = ranks.run(in_rank)
    assert steps == 2
    assert largest_difference(own, other) == 0
    alone = make_mlp()
    x, y = DATA[16:32]
    functional.cross_entropy(alone(x), y).backward()
    sgd(alone).step()
    assert largest_difference({n.removeprefix("net."): v for n, v in own.items()}, weights(alone)) < 1e-12


# ---------------------------------------------------------------- uneven data


UNEVEN = {
    "a shorter rank": [[*range(0, 14)], [*range(14, 22)]],
    "a shorter last batch": [[*range(0, 8)], [*range(8, 15)]],
    "a rank that ends in an earlier window": [[*range(0, 30)], [*range(30, 34)]],
    "a rank without any batch": [[*range(0, 10)], []],
    "rank 0 without any batch": [[], [*range(0, 10)]],
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
@pytest.mark.parametrize("case", ["a rank that ends in an earlier window", "a rank without any batch"])
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
